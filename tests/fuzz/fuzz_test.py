"""The fuzz targets with libFuzzer, ASan and UBSan, ten minutes each, from the corpora. Long form only;
builds with clang into build-fuzz. What is found stays in build-fuzz/findings, what a target
printed in build-fuzz/NAME.log."""
import os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
BUILD = os.path.join(ROOT, "build-fuzz")
SECONDS = int(os.environ.get("FLOTILLA_FUZZ_SECONDS", "600"))


def main():
    # Optimised less than what ships: with the sanitizers clang takes many minutes for the kernels at -O3.
    subprocess.run(["cmake", "-B", BUILD, "-DCMAKE_C_COMPILER=clang", "-DFUZZ=ON", "-DSANITIZE=address,undefined",
                    "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1 -g"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    targets = sorted(name.removesuffix(".c") for name in os.listdir(HERE) if name.endswith("_fuzz.c"))
    subprocess.run(["cmake", "--build", BUILD, "-j", str(os.cpu_count()), "--target", *targets], check=True,
                   stdout=subprocess.DEVNULL)
    running = []
    for name in targets:
        found, new = (os.path.join(BUILD, kind, name) for kind in ("findings", "corpus"))
        for folder in (found, new):
            os.makedirs(folder, exist_ok=True)
        log = open(os.path.join(BUILD, name + ".log"), "w+")  # no pipe: one that nobody reads stops its writer
        running.append((name, log, subprocess.Popen(
            [os.path.join(BUILD, "bin", name), f"-max_total_time={SECONDS}", "-max_len=65536", "-timeout=20", "-rss_limit_mb=4096",
             f"-artifact_prefix={found}/", new, os.path.join(HERE, "corpus", name.removesuffix("_fuzz"))],
            stdout=log, stderr=subprocess.STDOUT)))
    failed = False
    for name, log, p in running:
        p.wait()
        log.seek(0)
        out = log.read()
        print(name, "exit", p.returncode, out.strip().splitlines()[-1])
        if p.returncode:
            print(out[-4000:])
        # It says how long it ran: a target that did not run its time has shown nothing.
        done = re.search(r"Done \d+ runs in (\d+) second", out)
        failed |= p.returncode != 0 or not done or int(done[1]) < SECONDS
    sys.exit(failed)


if __name__ == "__main__":
    main()
