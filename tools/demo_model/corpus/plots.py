"""Plots, stage by stage, each stage in several wordings. The other half is in more_plots."""

from __future__ import annotations

PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "lost": (
        (
            "There {he} [noticed|saw] that {his} {adj} {thing} was [gone|missing].",
            "When {he} [opened|looked into] {his} bag, the {adj} {thing} was not there.",
        ),
        (
            "[It had been a present from {elder}|{elder} had given it to {him}], so {name} "
            "[was very sad|began to worry].",
            "{name} [needed it for {his} work|could not work without it] and [did not know what to "
            "do|felt afraid].",
        ),
        (
            "First {he} looked [under the {thing2}|behind the {place}], but there was only dust.",
            "{^he} searched the {place} from end to end and found [nothing|only {a food}].",
        ),
        (
            '"What are you looking for?" asked {friend}, {a job2} who was passing by.',
            '{friend} came [around the corner|along the road] and asked, "Why do you look so sad?"',
        ),
        (
            '"I lost my {thing}," said {name}. "It is {adj} and {colour}."',
            '"My {colour} {thing} is gone," {name} [answered|said]. "Have you seen it?"',
        ),
        (
            "Together they walked [back to|all the way to] the {place2} and asked [everyone|every "
            "person] they met.",
            '"Let us look together," said {friend}, and they went to the {place2}.',
        ),
        (
            "At last {friend} heard {a animal} [scratching|moving] behind a wall. It was sitting "
            "on the {thing}!",
            "Near the {place2}, {a animal} was playing with something {colour}. The {thing}!",
        ),
        (
            '{name} [laughed with joy|was so happy that {he} danced]. "Thank you," {he} said, and '
            "gave {friend} {a food2}.",
            "{name} held the {thing} [tightly|close] and thanked {friend} [again and again|with "
            "all {his} heart].",
        ),
    ),
    "broken": (
        (
            "On the way {he} [dropped|let fall] the {adj} {thing} of {his} neighbour {elder}, and "
            "it [broke in two|cracked].",
            "[By accident|Without meaning to], {he} broke the {adj} {thing} that belonged to {elder}.",
        ),
        (
            "{name} wanted to hide it, but [that did not feel right|{he} knew that was wrong].",
            "At first {he} thought of saying nothing. Then {he} [changed {his} mind|felt ashamed].",
        ),
        (
            'So {he} went to {elder} and said, "I am sorry. I broke your {thing}."',
            "{^he} knocked on {elder}'s door and told the [whole story|truth].",
        ),
        (
            '{elder} [was silent for a moment|looked at the pieces]. "It was old," {ehe} said. '
            '"Perhaps {friend} can mend it."',
            '"Things break," said {elder} [kindly|softly]. "Ask {friend} the {job2} for help."',
        ),
        (
            "{friend} worked in a shop beside the {place2}, full of [tools|wood and wire].",
            "They found {friend} at the {place2}, with [glue|dust] on {fhis} hands.",
        ),
        (
            '"I can repair it," said {friend}, "but you must help me for {count} days."',
            '"Bring me some wire and {a food}," said {friend}, "and I will show you how."',
        ),
        (
            "{name} learned to [cut and polish|hold the tools], and [day by day|bit by bit] the "
            "{thing} grew whole again.",
            "They worked until the lamps were lit, and {name} [did not complain|listened well].",
        ),
        (
            "In the end the {thing} was {colour} and [better than before|almost like new].",
            "When it was done, nobody could see [where it had broken|the crack].",
        ),
        (
            '"You were honest," said {elder}, "and now you have learned something too."',
            "{elder} put it on the shelf and gave {name} {a food2} [for {his} work|with a smile].",
        ),
    ),
    "animal": (
        (
            "Near the {place2} {he} heard a small sound. A {colour} {animal} was [hiding under a "
            "cart|sitting in the grass].",
            "{^he} had not gone far when {a animal} [followed {him}|crossed {his} path].",
        ),
        (
            "It had a [ribbon|string] around its neck with the name {animal_name} on it.",
            'On its collar was written: "My name is {animal_name}."',
        ),
        (
            '"You are far from home, {animal_name}," said {name}. "Who is looking for you?"',
            "{name} knelt down and [gave it {a food}|spoke to it softly].",
        ),
        (
            "{^he} asked the {job2} at the {place}, but [the {job2} only shook a tired head|nobody "
            "there knew the {animal}].",
            "At the {place} {he} met {a job2}, who said that the {animal} was not from there.",
        ),
        (
            '"I have seen it before," said a child. "It belongs to {friend}, who lives by the {place2}."',
            "A boy pointed to the {place2}. {friend} lived there, he said, and had lost {a animal}.",
        ),
        (
            "So {name} carried {animal_name} [over the hill|through the streets] to a house with "
            "{a colour} door.",
            "They walked for [an hour|a long time], and {animal_name} [stayed close|did not run away].",
        ),
        (
            '{friend} opened the door and [cried out with joy|began to cry]. "{animal_name}! You came back!"',
            "When {friend} saw them, {fhe} ran [out of the house|down the path] and hugged the {animal}.",
        ),
        (
            '"How can I thank you?" asked {friend}. "Come in and eat {a food2} with us."',
            "{friend} gave {name} {a adj} {thing} [to remember the day|as a gift].",
        ),
    ),
    "storm": (
        (
            "In the afternoon dark clouds came over the {place2}, and the wind [grew strong|began to howl].",
            "Then the sky turned black. A great storm was coming from the {place2}.",
        ),
        (
            '"We must bring everyone inside," said {name}, and [ran from door to door|rang the bell].',
            "{name} called to the people to [hurry|come into the {place}].",
        ),
        (
            "Soon {count} families were sitting in the {place}, with bread and blankets.",
            "One after another they came, wet and cold, {count} of them in all.",
        ),
        (
            "Only old {elder} was missing. {^ehis} house stood alone near the {place2}.",
            'Then {friend} looked around and asked, "Where is {elder}?"',
        ),
        (
            "{name} took {a thing} and {a thing2} and went out into the rain with {friend}.",
            '"I will go," said {name}. {friend} [did not want {him} to go alone|came too].',
        ),
        (
            "The road was under water, and [twice they almost fell|trees lay across it].",
            "They held hands and [walked slowly|counted every step] so as not to get lost.",
        ),
        (
            "They found {elder} on the roof with {ehis} {animal}, [quite calm|shaking with cold].",
            "{elder} was sitting on a table, holding {a animal} above the water.",
        ),
        (
            'They brought both back [safely|before night]. "You are brave," said {elder}.',
            "{name} carried the {animal}, {friend} helped {elder}, and so they all came back.",
        ),
        (
            "[By morning|The next day] the storm was over, and [the sun shone on the {place}|the "
            "birds were singing].",
            "When the rain stopped, the people [mended the roofs together|shared what they had].",
        ),
    ),
    "gift": (
        (
            "It was nearly the birthday of {his} friend {friend}, and {name} had no money for a gift.",
            "The next day was {friend}'s birthday. {name} had only {count} coins.",
        ),
        (
            "At the {place} {he} saw {a adj} {thing}, but it cost [far too much|twenty coins].",
            "{^he} looked at {a colour} {thing} in a window for a long time. It was too dear.",
        ),
        (
            '"I could make one," {he} thought, "if only I knew how."',
            "Then {name} had an idea. {^he} would make {a thing} with {his} own hands.",
        ),
        (
            "{^he} asked {elder} the {job2} for some [wood|cloth] and a little advice.",
            "{elder}, an old {job2}, gave {him} a few tools and showed {him} the first steps.",
        ),
        (
            "The first one was crooked, and the second one fell apart.",
            "It was harder than it looked. {name} [hurt a finger|had to start again].",
        ),
        (
            '"Do not give up," said {elder}. "My first {thing} was much worse."',
            "But {he} went on working by the light of a candle, late into the night.",
        ),
        (
            "In the morning there it was, {adj} and {colour}, with {friend}'s name on it.",
            "The third one was good. {^he} painted it {colour} and wrapped it in paper.",
        ),
        (
            '{friend} opened the paper slowly. "Did you make this for me?" {fhe} asked.',
            "When {friend} saw the {thing}, {fhe} could not speak for a moment.",
        ),
        (
            '"It is the best {thing} in {town}," {fhe} said, and they shared {a food2}.',
            "{friend} took it everywhere, and soon others wanted one as well.",
        ),
    ),
    "map": (
        (
            "Inside an old {thing} {he} found a map with {a colour} cross on it.",
            "There, behind a loose stone, lay a map with {a colour} mark near the {place2}.",
        ),
        (
            "{name} showed it to {friend}, who [knew a lot about maps|loved secrets].",
            '"Look at this," {he} said to {friend}. "What could it mean?"',
        ),
        (
            '"It says to walk {count} steps from the {place2}," said {friend}.',
            '"This is the {place2}," said {friend}, "and the line must be the old road."',
        ),
        (
            "They packed {a food}, {a thing2} and a rope, and left before sunrise.",
            "The next morning they set off with {a thing2} and a bag of bread.",
        ),
        (
            "Twice they took the wrong path, and once {a animal} blocked the way.",
            "In the woods they met {a animal}, which looked at them and ran away.",
        ),
        (
            "At the cross they dug until they hit something hard. It was {a adj} box.",
            "They dug for an hour. At last the shovel struck the lid of {a adj} box.",
        ),
        (
            "There was no gold in it, only letters and {a colour} ribbon.",
            "Inside lay no treasure, but {count} letters tied with a ribbon.",
        ),
        (
            "The letters had been written by {elder}, who was now the oldest {job2} in {town}.",
            "{elder} the {job2} had put them there as a child, and had long forgotten it.",
        ),
        (
            'When they brought the letters to {elder}, {ehe} read them aloud and wept. "Thank '
            'you," {ehe} said.',
            "{elder} was so glad that {ehe} told them stories of the old days until midnight.",
        ),
    ),
}
