"""Tasks whose answers repeat their input, for drafts from texts: rewrite this with one change."""

# (text, a name in it, another name)
TEXTS = [
    ("The old lighthouse stood at the end of the pier, and every evening Thomas climbed its ninety-two steps to light the lamp. "
     "On clear nights he could see the lights of three villages along the coast, and beyond them the dark line of the hills. "
     "In winter the wind shook the windows and the waves reached the door, but the lamp never went out. "
     "When the new harbour was built, a machine took over his work, and Thomas moved into a small house near the church.",
     "Thomas", "Robert"),
    ("Our library opens at nine in the morning and closes at six in the evening, from Monday to Saturday. Members may borrow up to "
     "eight books for three weeks, and renew each of them twice if nobody else has asked for it. Newspapers and maps are read in "
     "the hall on the ground floor. The children's room is on the first floor, beside the garden door, and on Wednesday afternoons "
     "Maria reads stories there.", "Maria", "Helen"),
    ("To bake the bread, Anna mixes five hundred grams of flour with ten grams of salt, seven grams of yeast and three hundred "
     "millilitres of warm water. She kneads the dough for ten minutes until it is smooth, covers the bowl with a cloth, and lets "
     "it rest in a warm place for an hour. Then Anna shapes a round loaf, cuts a cross into it with a sharp knife, and lets it rise "
     "again for half an hour.", "Anna", "Peter"),
    ("The river rises in the northern mountains, runs through two narrow valleys, and reaches the plain near the town of Arden. "
     "Below the town it is wide and slow, and barges carry timber, grain and stone down to the sea. In spring the meadows on both "
     "banks are under water for several weeks, and herons and geese come in great numbers. The bridge of Arden has nine arches.",
     "Arden", "Millbrook"),
    ("Dear neighbours, on the first Sunday of May we shall clean the courtyard together. Please bring gloves, a rake or a broom, "
     "and something to eat for the long table under the lime tree. Martin has rented a small truck for the old bicycles, boxes "
     "and boards that nobody wants any more. If you cannot come but have something to give away, please put a note on it and "
     "leave it beside the cellar stairs by Saturday evening.", "Martin", "Oliver"),
    ("The train left the capital at seven in the evening and crossed the border shortly before midnight. In the dining car a "
     "waiter called Joseph served soup, trout and a pale wine, and the lamps on the tables trembled at every bend. Most of the "
     "passengers had gone to bed when it began to snow. At the highest station the engine took on water, and Joseph stepped out "
     "on the platform to smoke a cigarette and look at the mountains.", "Joseph", "Charles"),
    ("A beehive has one queen, some hundred drones and up to fifty thousand workers. The workers clean the cells, feed the young, "
     "build the combs and guard the entrance, and only in the last weeks of their lives do they fly out to gather nectar. Clara "
     "keeps her six hives at the edge of an orchard, where they find blossoms from April to August. In September she feeds them "
     "with sugar water, and in winter Clara leaves them alone.", "Clara", "Emma"),
    ("The committee met on the third of March in the small hall of the town museum. Present were eleven of its fourteen members. "
     "Mr Carter reported on the repair of the roof, which had cost less than expected, and proposed to spend the rest on new "
     "windows for the reading room. After a short discussion nine members voted for the proposal and two against it. Mr Carter "
     "will ask three firms for their prices and report again in May.", "Carter", "Walker"),
]


def chat(question):
    """A turn in the form of ChatML, which SmolLM2 and Qwen were trained on; tokenise it with control tokens."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def prompts():
    """Each asks for its text again with one name changed. What SmolLM2 answers repeats most of it; it changes commas, too."""
    return [chat(f"Rewrite this text with one change: write {new} in place of {old}. Change nothing else.\n\n{text}")
            for text, old, new in TEXTS]
