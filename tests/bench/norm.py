"""A norm fused with the products that read it, each row normalised and quantised once, against products
that each normalise and quantise their own input: every level of this machine, 1 and 16 rows. The figure,
0.95, is "no slower", with room for what a norm's share of the time lets be measured."""
import os, sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from ratio import BIN, Lines, options, run_json

from machine import levels


def main():
    lines = Lines(options(__doc__, pairs=9).parse_args())

    def rate(how, level, rows):
        return lambda: run_json(os.path.join(BIN, "norm_bench"), how, level, str(rows))["rows_per_s"]
    for level in levels():
        for rows in (1, 16):
            lines.compare(f"norm and linear, {level}, {rows} rows: fused / apart", rate("fused", level, rows), rate("apart", level, rows),
                          0.95)
    lines.finish()


if __name__ == "__main__":
    main()
