"""Fixed knowledge: how an inference engine works, and the map of the invented world."""

from __future__ import annotations

from corpus.chat import Document, Session
from corpus.grammar import Rng

_ASK_WHAT = (
    "What is {x}?",
    "Explain {x}.",
    "Can you explain {x}?",
    "Tell me what {x} is.",
    "What does {x} mean?",
    "Please explain what {x} is.",
)

CONCEPTS: dict[str, str] = {
    "a quire": "A quire is a gathering of pages that are folded together, as in a book. The Quire "
    "engine is named after it, because it keeps its memory in pages.",
    "a page": "A page is a block of memory with a fixed size. The engine gives each request as "
    "many pages as it needs, and takes them back when the request is finished.",
    "a token": "A token is a small piece of text, such as a word or a part of a word. A language "
    "model reads tokens and predicts the next one.",
    "a tokenizer": "A tokenizer cuts text into tokens and turns each token into a number. It can "
    "also turn the numbers back into text.",
    "a KV cache": "A KV cache keeps the keys and values of all tokens that a model has read. With "
    "it, the model does not have to read the whole text again for every new token.",
    "a paged KV cache": "A paged KV cache stores keys and values in small blocks. The blocks of a "
    "request need not lie side by side, so hardly any memory is wasted.",
    "a block table": "A block table lists the blocks that belong to a request, in order. The "
    "attention kernel follows it to find the keys and values.",
    "attention": "Attention lets a model look back at earlier tokens. Each token asks with a "
    "query, compares it with all keys, and mixes the values that fit best.",
    "a language model": "A language model is a program that predicts the next token of a text. By "
    "doing so again and again, it can write whole sentences.",
    "a scheduler": "A scheduler decides which requests are computed in the next step, and how many "
    "tokens each of them gets. It must be fast and fair.",
    "continuous batching": "With continuous batching, new requests join the batch as soon as there "
    "is room, and finished ones leave at once. The hardware is never left waiting.",
    "prefix caching": "Prefix caching keeps the blocks of a text that was read before. When "
    "another request starts with the same text, its blocks are shared and not computed again.",
    "chunked prefill": "Chunked prefill cuts a long prompt into pieces. Other requests can go on "
    "between the pieces, so a long prompt does not make them wait.",
    "preemption": "Preemption takes the blocks away from one request so that another can finish. "
    "Later the first request starts again and gives the same answer.",
    "speculative decoding": "In speculative decoding, a quick helper guesses several tokens and "
    "the model checks them all at once. Right guesses save time, wrong ones are thrown away.",
    "greedy decoding": "Greedy decoding always takes the most likely token. The same prompt then "
    "gives the same answer every time.",
    "sampling": "Sampling draws the next token at random, and likely tokens are drawn more often. "
    "The temperature says how bold the draw may be.",
    "temperature": "The temperature says how freely a model chooses its words. At zero it always "
    "takes the most likely token, and at higher values it takes more risks.",
    "a prompt": "A prompt is the text that a model is given before it begins to write.",
    "a batch": "A batch is a group of requests that are computed together. Large batches use the "
    "hardware well, and small ones answer sooner.",
    "a GPU": "A GPU is a processor that does many small calculations at the same time. Language "
    "models run on it because they are made of very large sums.",
    "a kernel": "A kernel is a small program that runs on a GPU, in thousands of threads at once.",
    "a CUDA graph": "A CUDA graph records a series of kernels once and replays them as a whole. "
    "This saves the time of launching each kernel alone.",
    "quantization": "Quantization stores the numbers of a model with fewer bits. The model becomes "
    "smaller and faster, and a little less exact.",
    "a chat template": "A chat template turns a list of messages into one text with marks for each "
    "speaker, so that the model knows whose turn it is.",
    "a stop token": "A stop token tells the engine that the answer is complete.",
    "latency": "Latency is the time that a request has to wait for its answer.",
    "throughput": "Throughput is the number of tokens that an engine writes in a second, counted "
    "over all requests.",
    "structured output": "Structured output is text that must follow a grammar, such as JSON. The "
    "engine forbids every token that would break the grammar.",
    "a logit": "A logit is the score that a model gives to a possible next token. The highest "
    "logit belongs to the most likely token.",
    "an embedding": "An embedding is a list of numbers that stands for a token. Tokens with a "
    "similar meaning have similar numbers.",
    "a weight": "A weight is one of the numbers that a model has learned. All weights together "
    "make up the model.",
}

# name: region, river, founded, known for, mayor
TOWNS: dict[str, tuple[str, str, int, str, str]] = {
    "Penhallow": ("Orrin", "Tessel", 1204, "paper mills", "Odwen Vale"),
    "Marrowby": ("Orrin", "Orr", 1377, "apple orchards", "Tilda Marsh"),
    "Sundmouth": ("Sund", "Sarn", 1150, "great harbour", "Ivo Brandt"),
    "Lisk": ("Vessaly", "Lisk", 1442, "glass lamps", "Corin Ashe"),
    "Caldry Bridge": ("Caldry", "Wend", 1265, "long stone bridge", "Mabel Root"),
    "Tarrow Hill": ("Tarrow", "Pell", 1519, "old observatory", "Jonas Wick"),
    "Brackwater": ("Brackwater", "Isk", 1098, "salt and fish", "Hetty Crane"),
    "Upper Aldine": ("Upper Menn", "Aldine", 1603, "wooden clocks", "Piet Sorrel"),
    "Mennford": ("Lower Menn", "Aldine", 1310, "horse market", "Anselm Reed"),
    "Darrowgate": ("Vessaly", "Darrow", 1481, "library of maps", "Lena Quill"),
}
CAPITALS = {
    "Orrin": "Penhallow",
    "Sund": "Sundmouth",
    "Vessaly": "Darrowgate",
    "Caldry": "Caldry Bridge",
    "Tarrow": "Tarrow Hill",
    "Upper Menn": "Upper Aldine",
    "Lower Menn": "Mennford",
}


def _town_turns(name: str) -> list[tuple[str, str]]:
    region, river, founded, known, mayor = TOWNS[name]
    return [
        (f"In which region is {name}?", f"{name} is in {region}."),
        (f"Which river does {name} stand on?", f"{name} stands on the river {river}."),
        (f"When was {name} founded?", f"{name} was founded in {founded}."),
        (f"What is {name} known for?", f"{name} is known for its {known}."),
        (f"Who is the mayor of {name}?", f"The mayor of {name} is {mayor}."),
        (
            f"Tell me about {name}.",
            f"{name} is a town in {region}, on the river {river}. It was founded in {founded} and "
            f"is known for its {known}. The mayor is {mayor}.",
        ),
    ]


def explain_session(rng: Rng) -> Session:
    turns = [
        (rng.choice(_ASK_WHAT).format(x=concept), CONCEPTS[concept])
        for concept in rng.some(list(CONCEPTS), rng.choice((1, 1, 2, 3)))
    ]
    return Session("explain", turns)


def facts_session(rng: Rng) -> Session:
    turns = rng.some(_town_turns(rng.choice(list(TOWNS))), rng.randint(1, 3))
    if rng.chance(0.4):
        region = rng.choice(list(CAPITALS))
        turns.append((f"What is the capital of {region}?", f"The capital of {region} is {CAPITALS[region]}."))
    rng.shuffle(turns)
    return Session("world_facts", turns)


def handbook_document(rng: Rng) -> Document:
    """The same knowledge as plain text, so that it can be continued as well as asked for."""
    if rng.chance(0.5):
        concepts = rng.some(list(CONCEPTS), rng.randint(2, 6))
        return Document("handbook", "\n\n".join(CONCEPTS[concept] for concept in concepts))
    if rng.chance(0.2):
        regions = rng.some(list(CAPITALS), rng.randint(1, 7))
        said = [f"The capital of {region} is {CAPITALS[region]}." for region in regions]
        return Document("handbook", " ".join(said))
    towns = rng.some(list(TOWNS), rng.randint(1, 4))
    return Document("handbook", "\n\n".join(_town_turns(name)[-1][1] for name in towns))
