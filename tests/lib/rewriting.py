"""Tasks whose answers repeat their input, for drafts from texts: rewrite this with one change."""

TEXTS = [
    ("The old lighthouse stood at the end of the pier, and every evening Thomas climbed its ninety-two steps to light the lamp. "
     "On clear nights he could see the lights of three villages along the coast, and beyond them the dark line of the hills. "
     "In winter the wind shook the windows and the waves reached the door, but the lamp never went out. "
     "When the new harbour was built, a machine took over his work, and Thomas moved into a small house near the church. "
     "He kept the brass key on a nail beside the stove, and on Sundays he walked down to the pier to look at the tower.",
     "Thomas", "Robert"),
    ("Our library opens at nine in the morning and closes at six in the evening, from Monday to Saturday. Members may borrow up to "
     "eight books for three weeks, and renew each of them twice if nobody else has asked for it. Newspapers and maps are read in "
     "the hall on the ground floor. The children's room is on the first floor, beside the garden door, and on Wednesday afternoons "
     "Maria reads stories there. Please leave umbrellas and wet coats at the entrance, and speak quietly in the reading room.",
     "Maria", "Helen"),
    ("To bake the bread, Anna mixes five hundred grams of flour with ten grams of salt, seven grams of yeast and three hundred "
     "millilitres of warm water. She kneads the dough for ten minutes until it is smooth, covers the bowl with a cloth, and lets "
     "it rest in a warm place for an hour. Then she shapes a round loaf, cuts a cross into it with a sharp knife, and lets it rise "
     "again for half an hour. Anna bakes it in a hot oven for thirty-five minutes, until it sounds hollow when she knocks on it.",
     "Anna", "Peter"),
    ("The river rises in the northern mountains, runs through two narrow valleys, and reaches the plain near the town of Arden. "
     "Below the town it is wide and slow, and barges carry timber, grain and stone down to the sea. In spring the meadows on both "
     "banks are under water for several weeks, and herons and geese come in great numbers. The bridge of Arden has nine arches; it "
     "was built of grey stone by the people of the town themselves, and it has withstood every flood since.",
     "Arden", "Millbrook"),
]

CODE = [
    ("def word_counts(text):\n    counts = {}\n    for word in text.lower().split():\n        word = word.strip('.,;:!?')\n"
     "        if word:\n            counts[word] = counts.get(word, 0) + 1\n    return counts\n\n\n"
     "def most_common(text, n):\n    counts = word_counts(text)\n    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))\n"
     "    return ordered[:n]\n\n\ndef print_table(text, n):\n    for word, count in most_common(text, n):\n"
     "        print(f'{word:20} {count:6}')\n", "word_counts", "count_words"),
]


def chat(question):
    """A turn in the form of ChatML, which SmolLM2 and Qwen were trained on; tokenise it with control tokens."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def prompts(kind="text"):
    """Each asks for its text again with one name changed."""
    if kind == "code":
        return [chat(f"Rename the function {old} to {new} in this code. Change nothing else, and answer with the code only.\n\n"
                     f"```python\n{text}```") for text, old, new in CODE]
    return [chat(f"Rewrite this text with one change: write {new} in place of {old}. Change nothing else.\n\n{text}")
            for text, old, new in TEXTS]
