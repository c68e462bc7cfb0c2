"""Tasks whose answers repeat their input, for drafts from texts: rewrite this with one change.

The texts are SmolLM2's own: each is what it made of a text when asked to rewrite it, again and again until little changed. So
it repeats them nearly word for word, mostly without the change, and almost every guess is right. Texts that it would put in
other words gain less: the first ones that were tried, about three quarters of whose tokens were guessed right, gave 1.5 times the
rate without guesses on four stages 5 ms apart where these give more than 2.5, on a busy machine.
"""

# (text, a name in it, another name)
TEXTS = [
    ("The old lighthouse stood at the end of the pier, and every evening Thomas climbed its ninety-two steps to light the "
     "lamp. On clear nights, Thomas could see the lights of three villages along the coast, and beyond them the dark line "
     "of the hills. In winter, the wind shook the windows and the waves reached the door, but the lamp never went out. When "
     "the new harbour was built, a machine took over Thomas's work, and Thomas moved into a small house near the church.",
     "Thomas", "Robert"),
    ("The village school has two classrooms, a small library and a garden behind the house. In the morning, the children "
     "sit in a circle and tell each other what they have seen on their way. Then they read, write and count until noon, and "
     "after lunch, they work in the garden or play by the river. Their teacher, Laura, has been at the school for twenty "
     "years, and she knows every family in the valley.",
     "Laura", "Nina"),
    ("The workshop of the clockmaker was on the second floor of a narrow house in the old town. On the walls hung more than "
     "forty clocks, and all of them showed the right time. Every morning, George wound them one after the other with a "
     "small silver key, and then he sat down at the table by the window and repaired watches until it was dark.",
     "George", "Henry"),
    ("The river rises in the northern mountains, runs through two narrow valleys, and reaches the plain near the town of "
     "Arden. Below the town, it is wide and slow, and barges carry timber, grain, and stone down to the sea. In spring, the "
     "meadows on both sides of the river are under water for several weeks, and herons and geese come in great numbers. The "
     "bridge of Arden has nine arches.",
     "Arden", "Millbrook"),
    ("Dear neighbours, on the first Sunday of May, we shall clean the courtyard together. Please bring gloves, a rake or a "
     "broom, and something to eat for the long table under the lime tree. Martin has rented a small truck for the old "
     "bicycles, boxes and boards that nobody wants any more. If you cannot come but have something to give away, please "
     "leave a note on it and leave it beside the cellar stairs by Saturday evening.",
     "Martin", "Oliver"),
    ("The train left the capital at seven in the evening and crossed the border shortly before midnight. In the dining car, "
     "Joseph served soup, trout, and a pale wine, and the lamps on the tables trembled at every bend. Most of the "
     "passengers had gone to bed when it began to snow. At the highest station, the engine took on water, and Joseph "
     "stepped out on the platform to smoke a cigarette and look at the mountains.",
     "Joseph", "Charles"),
    ("A beehive has one queen, some hundred drones, up to fifty thousand workers, and up to 100,000 bees. The workers clean "
     "the cells, feed the young, build the combs, and guard the entrance, and only in the last weeks of their lives do they "
     "fly out to gather nectar. Clara keeps her six hives at the edge of an orchard, where they find blossoms from April to "
     "August. In September, they feed them with sugar water, and in winter, they leave them alone.",
     "Clara", "Emma"),
    ("The committee met on the third of March in the small hall of the town museum. Present were eleven of its fourteen "
     "members. Mr. Carter reported on the roof repair, which had cost less than expected, and proposed to spend the rest on "
     "new windows for the reading room. After a short discussion, the committee voted to spend the rest on new windows for "
     "the reading room.\n\nThe committee will ask three firms for their prices and report again in May.",
     "Carter", "Walker"),
]


def chat(question):
    """A turn in the form of ChatML, which SmolLM2 and Qwen were trained on; tokenise it with control tokens."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def prompts():
    """Each asks for its text again with one name changed. SmolLM2 repeats these texts almost word for word, and mostly forgets the
    name: they are in the style, down to its commas, that it would change others to."""
    return [chat(f"Rewrite this text with one change: write {new} in place of {old}. Change nothing else.\n\n{text}")
            for text, old, new in TEXTS]
