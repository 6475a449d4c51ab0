"""The invented world: names composed from syllables, and the things that fill it.

One name in ten is held out: training never sees it, evaluation uses nothing else.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from corpus.grammar import Rng


def is_held_out(key: str, one_in: int = 10) -> bool:
    return zlib.crc32(key.encode()) % one_in == 0


def split_list(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _compose(starts: str, ends: str) -> tuple[list[str], list[str]]:
    """All start + end pairs: those for training, then those held out."""
    words = [start + end for start in starts.split() for end in ends.split()]
    words = sorted({word for word in words if not any(c * 3 in word.lower() for c in "aeioulnr")})
    return [w for w in words if not is_held_out(w)], [w for w in words if is_held_out(w)]


_KNOWN_NAMES = split_list(
    "Alice, Anna, Anne, Ben, Bob, Carl, Clara, Dan, David, Ella, Emma, Eva, Frank, Fred, George, "
    "Hannah, Henry, Ida, Jack, Jane, John, Julia, Kate, Laura, Leo, Lisa, Lucy, Maria, Mark, Mary, "
    "Max, Mia, Nina, Oscar, Paul, Peter, Rosa, Ruth, Sam, Sara, Simon, Sophie, Tim, Tom, Vera, Will"
)
_KNOWN_TOWNS = split_list(
    "London, Paris, Berlin, Rome, Madrid, Oslo, Vienna, Lisbon, Dublin, Athens, Cairo, Tokyo, "
    "Lima, Boston, Chicago, Delhi, Sydney, Geneva, Prague, Warsaw"
)
FIRST_NAMES = _compose(
    "Al Bra Cor Da El Fen Gar Hal Il Jo Ka Lin Mar Nel Or Pel Quin Ro Sel Tam Ul Ver Wil Yar Zan "
    "Bel Cas Dor Ev Flo Gwen Hes Jun Kel Lor Mir Nor Os Per Ra Sor Tor Vin Wen Yol Zel Ab Em Ni Pa "
    "Ad Be Ced Dru Eg Fi Gri Hu Iv Jas Kip Lu Mor Ned Ol Pim Ru Sim Thi Ug Vo Wal Ys Zu Bry Cla "
    "Dwy Er Fro Gla Hil Jem Kor Lys Mau Ned Ott Phi Rho Sky Tru Ves",
    "a an bert da den dra el en fa ga gan i ia ina is ka la len lin lo mar mi mond na nor o on ra "
    "ric rin ro sa ta ten tha tin va vin wen wyn za zo bel bo cas da do ed fin gon hild ick jo kin "
    "lia lot mund ney nis old per ram rey sel sim tor tus ula us vard vy wald wick zel",
)
# Each half in an order that has nothing to do with the alphabet.
FIRST_NAMES_BY_ROLE = tuple(
    tuple(
        sorted(
            (name for name in names if zlib.crc32(f"role {name}".encode()) % 2 == role),
            key=lambda name: zlib.crc32(f"order {name}".encode()),
        )
        for names in FIRST_NAMES
    )
    for role in range(2)
)
FAMILY_NAMES = _compose(
    "Ash Black Brook Cold Dun Elm Fair Gold Green Hart Hazel High Holl Iron Kings Lake Lang Long "
    "Marsh Mill New North Oak Pen Red Rook Sand Silver Stan Stone Swan Thorn Under Wake West Whit "
    "Wick Winter Wolf Wren Alder Barn Birch Burr Chest Clay Copper Deep Fox Frost Hawk Heather "
    "Honey Lamb Moor Otter Pepper Plum Rain Rush Sparrow Storm Straw Twin Vine Wheat",
    "bridge brook by combe cott croft dale den field ford gate ham hill hurst land ley low man "
    "mere more ridge shaw smith son stead ton wall ward water way well wick win wood worth",
)
TOWN_NAMES = _compose(
    "Aber Amber Bright Carn Clear Crow Dray Ever Fal Fern Glen Grey Harrow Hollow Kest Lark Loch "
    "Marl Mist Moss Nettle Old Otter Pine Port Quill Raven River Rose Salt Shell Sil Spring "
    "Summer Tarn Thistle Vale Wether Willow Yarrow Apple Bell Bramble Candle Cinder Cobble Cop "
    "Dove Eagle Flint Gorse Heron Juniper Lantern Maple Nor Plover Reed Sedge Sorrel Tide Winnow",
    "bank barrow beck bourne bury cliff cove crest crossing dene fall firth grove haven heath "
    "helm holt keld march mouth point port pool reach rest rock side stone view watch",
)
_ONSETS = split_list(
    "b, bl, br, c, cr, d, dr, f, fl, fr, g, gl, gr, h, j, k, kl, l, m, n, p, pl, pr, qu, r, s, sk, "
    "sn, st, t, tr, v, w, y, z"
)
_CODAS = [
    *("", "", ""),
    *split_list("b, d, f, g, k, l, m, n, p, r, s, t, x, ck, lt, mp, nd, nk, rn, sh, st, th, zz"),
]


COLOURS = split_list(
    "red, blue, green, yellow, white, black, brown, grey, orange, purple, pink, silver, golden"
)
ANIMALS = split_list(
    "cat, dog, horse, rabbit, goat, fox, owl, duck, sheep, mouse, cow, goose, otter, hedgehog, "
    "donkey, parrot, pony, turtle, frog, crow, swan, badger, squirrel, deer, bear, wolf, hen"
)
FOODS = split_list(
    "apple, pear, plum, carrot, onion, egg, cake, potato, cherry, lemon, pie, bean, peach, melon, "
    "biscuit, walnut, tomato, fig, turnip, pepper, pancake, muffin, grape, pumpkin, cabbage, bun"
)
OBJECTS = split_list(
    "lamp, key, book, rope, basket, bell, map, coin, box, cup, clock, hammer, candle, boat, "
    "blanket, ladder, mirror, drum, kite, bottle, ring, knife, letter, chair, wheel, violin, "
    "compass, feather, jar, whistle, bucket, scarf, hat, coat, button, needle, saw, brush, "
    "lantern, pencil, stamp, flute, puppet, glove, cart, tent, pillow, spoon, kettle, shovel, "
    "marble, ribbon, telescope, trumpet, umbrella, wallet, axe, anchor"
)
PLANTS = split_list(
    "oak, rose, fern, ivy, daisy, pine, willow, tulip, thistle, moss, birch, lily, clover, maple"
)
TOOLS = split_list("hammer, saw, axe, shovel, needle, knife, brush, ladder, rope, spade, rake, drill")
JOBS = split_list(
    "baker, farmer, teacher, sailor, doctor, carpenter, painter, fisher, tailor, gardener, "
    "blacksmith, librarian, potter, miller, clockmaker, shepherd, weaver, cook, musician, "
    "beekeeper, mason, printer, postmaster, nurse, pilot, judge, glassblower, locksmith, "
    "bookbinder, ferryman, cobbler, surveyor"
)
PLACES = split_list(
    "market, library, harbour, forest, mill, bridge, garden, school, hill, river, tower, inn, "
    "bakery, square, orchard, lighthouse, workshop, museum, meadow, station, lake, cave, beach, "
    "barn, theatre, well, post office, town hall, old wall, ferry"
)
HOBBIES = split_list(
    "painting, fishing, singing, reading, cooking, gardening, chess, dancing, swimming, climbing, "
    "sewing, carving wood, collecting stamps, flying kites, baking, writing poems, watching birds, "
    "playing the flute, playing the drum, riding horses, rowing, skating, juggling"
)
INSTRUMENTS = split_list("flute, drum, violin, trumpet, harp, piano, guitar, horn")
SUBJECTS = split_list(
    "maps, birds, ships, history, music, stars, bread, gardens, bridges, stones, medicine, law, "
    "numbers, languages, insects, engines, paper, wool, glass, weather"
)
DAYS = split_list("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = split_list(
    "January, February, March, April, May, June, July, August, September, October, November, December"
)
WEATHER = split_list("sunny, rainy, windy, cloudy, snowy, foggy, stormy, cold, warm, dry")
MOODS = split_list("happy, tired, curious, worried, proud, quiet, brave, lonely, cheerful, nervous")
ADJECTIVES = split_list(
    "old, small, large, heavy, bright, broken, wooden, shiny, round, rusty, soft, tall, narrow, "
    "dusty, painted, strange, warm, empty, light, long, clean, thin, smooth, plain"
)
REGIONS = split_list("Orrin, Vessaly, Tarrow, Lower Menn, Upper Menn, Caldry, Sund, Brackwater")
RIVERS = split_list("Tessel, Orr, Wend, Lisk, Morrow, Aldine, Pell, Sarn, Isk, Darrow")
NUMBER_WORDS = split_list(
    "zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, "
    "fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty"
)
ORDINALS = split_list("first, second, third, fourth, fifth, sixth, seventh, eighth, ninth, tenth")

# Everyday words with no other role here, so that copying and spelling know them too.
EVERYDAY_WORDS = split_list(
    "the, a, and, but, not, with, from, into, over, under, about, after, before, again, always, "
    "never, often, soon, today, tomorrow, yesterday, morning, evening, night, year, week, hour, "
    "man, woman, child, friend, people, family, house, home, room, door, window, wall, street, "
    "road, city, country, world, water, fire, air, earth, sun, moon, star, sky, sea, wind, snow, "
    "rain, tree, flower, grass, leaf, wood, stone, sand, gold, iron, hand, head, eye, ear, foot, "
    "heart, face, hair, voice, name, word, story, song, game, school, work, money, paper, letter, "
    "number, question, answer, idea, thing, place, time, way, life, love, peace, war, truth, "
    "quick, slow, lazy, good, bad, new, young, high, low, big, little, short, hot, cool, wet, "
    "hard, easy, strong, weak, rich, poor, free, full, open, closed, early, late, first, last, "
    "go, come, run, walk, jump, jumps, sit, stand, sleep, eat, drink, read, write, speak, say, "
    "tell, ask, give, take, make, find, lose, buy, sell, open, close, begin, end, think, know, "
    "see, hear, feel, want, need, like, hello, please, thanks, yes, no, maybe, is, are, was, were, "
    "has, have, had, can, will, must, should, this, that, these, those, here, there, where, when, "
    "who, why, how, what, my, your, his, her, our, their, we, you, they, it, in, on, at, by, for, "
    "computer, phone, car, train, plane, bus, coffee, tea, milk, sugar, salt, meat, fish, banana, "
    "strawberry, orange, table, bed, picture, movie, music, science, history, language, model, "
    "token, page, cache, engine, batch, request, block, memory, python, code, data, test, server"
)
ALL_NOUNS = sorted({*ANIMALS, *FOODS, *OBJECTS, *PLANTS})
COMMON_WORDS = sorted({*ALL_NOUNS, *COLOURS, *ADJECTIVES, *JOBS, *WEATHER, *MOODS})


def _draw(rng: Rng, lists: tuple[list[str], list[str]]) -> str:
    return rng.choice(lists[1] if rng.held_out else lists[0])


def first_name(rng: Rng) -> str:
    """Mostly a name of this world; at times a known one, or one that nobody has."""
    roll = rng.random()
    if roll < 0.06 and not rng.held_out:
        return rng.choice(_KNOWN_NAMES)
    if roll < 0.16:
        return made_up_word(rng).capitalize()
    return _draw(rng, FIRST_NAMES)


def family_name(rng: Rng) -> str:
    return _draw(rng, FAMILY_NAMES)


def town(rng: Rng) -> str:
    roll = rng.random()
    if roll < 0.05 and not rng.held_out:
        return rng.choice(_KNOWN_TOWNS)
    if roll < 0.12:
        return made_up_word(rng).capitalize()
    return _draw(rng, TOWN_NAMES)


def made_up_word(rng: Rng) -> str:
    """One to three random syllables. There are too many to learn, so they must be copied."""
    while True:
        word = "".join(
            rng.choice(_ONSETS) + rng.choice("aeiou") + rng.choice(_CODAS)
            for _ in range(rng.choice((1, 2, 2, 2, 3)))
        )
        if len(word) > 3 and is_held_out(word) == rng.held_out:
            return word


def distinct(rng: Rng, draw: str, count: int) -> list[str]:
    """`count` different names of one sort: first, family or town."""
    lists = {
        "first": FIRST_NAMES,
        "family": FAMILY_NAMES,
        "town": TOWN_NAMES,
    }[draw]
    return rng.some(lists[1] if rng.held_out else lists[0], count)


def skewed_name(rng: Rng, which: int) -> str:
    """A first name for role `which` (0 or 1) of a story, some names much more often than others.

    Each role has its own favourites, so that greedy decoding does not call two people the same.
    """
    names = FIRST_NAMES_BY_ROLE[which]
    return rng.skewed(names[1] if rng.held_out else names[0])


def is_female(name: str) -> bool:
    """So that a pronoun can be read off a name, also one never seen before."""
    return name[-1] in "aie"


@dataclass(frozen=True)
class Person:
    first: str
    family: str
    age: int
    job: str
    town: str
    pet: str
    pet_name: str
    colour: str
    hobby: str
    food: str

    @property
    def full_name(self) -> str:
        return f"{self.first} {self.family}"

    @property
    def slots(self) -> dict[str, str]:
        female = is_female(self.first)
        return {
            "name": self.first,
            "family": self.family,
            "full": self.full_name,
            "age": str(self.age),
            "job": self.job,
            "town": self.town,
            "pet": self.pet,
            "pet_name": self.pet_name,
            "colour": self.colour,
            "hobby": self.hobby,
            "food": self.food,
            "he": "she" if female else "he",
            "him": "her" if female else "him",
            "his": "her" if female else "his",
        }


def person(rng: Rng) -> Person:
    return Person(
        first=first_name(rng),
        family=family_name(rng),
        age=rng.randint(18, 89),
        job=rng.choice(JOBS),
        town=town(rng),
        pet=rng.choice(ANIMALS[:20]),
        pet_name=first_name(rng),
        colour=rng.choice(COLOURS),
        hobby=rng.choice(HOBBIES),
        food=rng.choice(FOODS),
    )
