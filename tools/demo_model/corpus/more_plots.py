"""The second half of the plots."""

from __future__ import annotations

MORE_PLOTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "contest": (
        (
            "That week there was a contest. Whoever [made the best {thing}|was best at {hobby}] "
            "would win {a colour} ribbon.",
            "A notice on the {place} said that a contest would be held on {day}. The prize was "
            "{a adj} {thing2}.",
        ),
        (
            "{name} wanted to win, but so did {friend}, [who was stronger|who had won before].",
            "Many people wrote their names on the list, and {friend} was one of them.",
        ),
        (
            "Every day {name} practised behind the {place2} until it was dark.",
            "{^he} practised for {count} days and hardly slept.",
        ),
        (
            '"You work too hard," said {elder}. "Remember to enjoy it."',
            '"Winning is not everything," said {elder}, and gave {him} {a food}.',
        ),
        (
            "When the day came, the whole town stood around the {place2}.",
            "On the day of the contest there were flags on every roof.",
        ),
        (
            "In the middle of it {friend} slipped and [fell|hurt {fhis} hand].",
            "Just before the end, {friend}'s tools broke, and {fhe} looked down in despair.",
        ),
        (
            "{name} could have won then. Instead {he} stopped and helped {friend}.",
            '{name} did not think twice. "Take mine," {he} said, and gave {fhim} a hand.',
        ),
        (
            "The judge smiled and said that there would be two winners that year.",
            "In the end neither of them won, but the people cheered for both.",
        ),
        (
            "They cut the ribbon in half, and each kept a piece.",
            '"Next year we will work together," said {friend}, and {name} agreed.',
        ),
    ),
    "stranger": (
        (
            "At the {place} a stranger in {a colour} coat was asking for [something to eat|a "
            "place to sleep].",
            "A stranger with {a adj} {thing} sat beside the road. {name} had never seen {a job2} so thin.",
        ),
        (
            "The others walked on, but {name} stopped and said good morning.",
            "Nobody wanted to talk to the stranger. {name} felt sorry and sat down too.",
        ),
        (
            '"I have only {a food}," said {name}, "but you may have half."',
            "{name} broke {his} {food} in two and gave away the larger half.",
        ),
        (
            'The stranger ate slowly. "My name is {friend}," {fhe} said. "I have come a long way."',
            '"Thank you," said the stranger. "They call me {friend}. I am {a job2}."',
        ),
        (
            "{friend} told of a city beyond the {place2} where the houses were {colour}.",
            "They talked about {hobby} and about the sea until the sun went down.",
        ),
        (
            'Before leaving, {friend} gave {name} {a thing}. "Use it when you need help," {fhe} said.',
            "In the morning {friend} was gone, but {a adj} {thing} lay on the table.",
        ),
        (
            "That winter was hard, and the people of {town} had little left to eat.",
            "Some weeks later the {place2} burned down, and there was no money to build a new one.",
        ),
        (
            "Then {name} remembered the {thing}. Inside it were {count} gold coins.",
            "{name} took out the {thing} and saw, for the first time, a letter hidden in it.",
        ),
        (
            "It was enough to help everyone. {name} wished that {friend} could see it.",
            "{^he} shared it with the whole town, just as {he} had once shared {his} {food}.",
        ),
    ),
    "well": (
        (
            "The well beside the {place} had run dry, and the gardens were turning brown.",
            "For {count} weeks there had been no rain, and now the last well was empty.",
        ),
        (
            '"Without water we will have to leave {town}," said {elder}, the oldest {job2}.',
            "The people met at the {place} and argued, but nobody had a plan.",
        ),
        (
            "{name} remembered a song about a spring under the {place2}.",
            "{name} had once seen {a animal} drinking near the {place2}, where everything was dry.",
        ),
        (
            '"That is only a tale," they said. Only {friend} believed {him}.',
            "Most of them laughed, but {friend} picked up a shovel.",
        ),
        (
            "The two of them dug all day, and found nothing but stones and {a adj} {thing}.",
            "They dug until their hands hurt. The ground was as hard as iron.",
        ),
        (
            "On the {day} after, the earth was darker. Then it was wet.",
            '"Listen," said {friend}. Under the stones something was whispering.',
        ),
        (
            "Clear water rose around their feet, and {friend} shouted until everyone came.",
            "A thin stream ran out, then a strong one, and soon there was a pool.",
        ),
        (
            "They built a wall of {colour} stones around it and gave it {name}'s name.",
            "Even those who had laughed came with buckets and said that they were sorry.",
        ),
    ),
    "night": (
        (
            "When it grew dark, {he} saw {a colour} light in the {place2}, where nobody lived.",
            "That night {a colour} light was moving about in the {place2}.",
        ),
        (
            '"It is a ghost," said {friend}. "{elder} always said so."',
            "The neighbours locked their doors. {friend} wanted to hide under the bed.",
        ),
        (
            "But {name} was more curious than afraid, and took {a thing} along.",
            '"There are no ghosts," said {name}. "I will go and look."',
        ),
        (
            "The grass was wet, and every sound seemed too loud.",
            "{^he} went on tiptoe. {friend} followed {count} steps behind.",
        ),
        (
            "Behind a broken door they saw a shadow with very long ears.",
            "Something [knocked|rattled], once, twice, and then it was quiet.",
        ),
        (
            "It was {elder}, the {job2}, with a lamp and {a adj} {thing2}!",
            "There sat {elder} on a box, repairing {a adj} {thing2} by the light of a candle.",
        ),
        (
            '"I come here to practise {hobby}," {ehe} said. "At home everyone would laugh."',
            '"Do not tell anyone," {ehe} begged. "It is a surprise for the children of {town}."',
        ),
        (
            "{name} promised to keep the secret, and {friend} brought {a food2} every evening.",
            "So they sat down and helped, and it was almost morning when they went home.",
        ),
    ),
    "journey": (
        (
            "A letter had come from {elder}, who lived {count} days away. It said only: Please come.",
            "{name} had to take {a adj} {thing} to {elder}, on the far side of the mountains.",
        ),
        (
            "{^he} packed {a food}, {a thing2} and a warm coat, and locked the door.",
            "{friend} offered to come along, and {name} was glad of it.",
        ),
        (
            "On the first day they walked along the river and slept in a barn.",
            "The first day was easy. They crossed a bridge and rested near the {place2}.",
        ),
        (
            "On the second day it rained, and {friend} hurt {fhis} foot.",
            "On the second day they lost the path, and a shepherd had to show them the way.",
        ),
        (
            '"Go on without me," said {friend}. "Never," said {name}, and made a stick for {fhim}.',
            "{friend} wanted to turn back. {name} told {fhim} a long story about {a animal} until "
            "{fhe} laughed.",
        ),
        (
            "On the third day they saw smoke, and a house with {a colour} roof.",
            "On the third day, from the top of a hill, they saw the lights of a village.",
        ),
        (
            '{elder} was waiting at the gate. "I only wanted to see you once more," {ehe} said.',
            "{elder} was ill, but when {ehe} saw them {ehe} sat up and asked for {a food2}.",
        ),
        (
            "They stayed for a week, mended the fence and listened to {elder}'s stories.",
            "They cooked and sang, and by the end of the week {elder} was well again.",
        ),
        (
            "The way home seemed much shorter than the way there.",
            "When they went home, {elder} gave them {a thing} and waved for a long time.",
        ),
    ),
    "bake": (
        (
            "{elder} had invited {count} guests, and {name} had promised to bring {a food}.",
            "There was to be a feast at the {place2}, and {name} had to cook for {count} people.",
        ),
        (
            "But the shelf was empty. There was only {a food2} and a little salt.",
            "{^he} opened the cupboard. A {animal} had eaten everything but {a food2}.",
        ),
        (
            '"What shall I do?" {he} cried. "They will be here by six."',
            "There was no time to go to the market, and it was closed anyway.",
        ),
        (
            '{friend} looked in at the window. "Make soup," {fhe} said. "Everyone can bring something."',
            '"I have {a food}," said {friend}, "and my neighbour has butter."',
        ),
        (
            "They went from house to house with {a adj} basket, and it grew heavier at each door.",
            "The {job2} gave salt, the miller gave flour, and a child gave one egg.",
        ),
        (
            "Soon the pot was full, and the whole street smelled of it.",
            "They stirred and tasted and stirred again, while {friend} laid the table.",
        ),
        (
            "The guests came, and the neighbours came too, and there was enough for all.",
            '"I have never eaten anything so good," said {elder}, and asked for more.',
        ),
        (
            '"What do you call it?" asked a guest. "{town} soup," said {name}, and laughed.',
            "When they asked for the recipe, {name} said that it took a whole street to make it.",
        ),
    ),
}
