"""How stories begin, pause, go on and end, whatever their plot."""

from __future__ import annotations

# Each opening names the hero, the job, the town and the day, so that questions can ask for them.
OPENINGS = (
    "[Once upon a time,|Long ago,|Many years ago,] {a job} named {name} lived in [the town of|] "
    "{town}. One {weather} {day}, {he} [set out for|went to|walked to] the {place}.",
    "{name} was {a job} in {town}. [On {a weather} {day},|One {weather} {day},] {he} [was on "
    "{his} way to|stopped at] the {place} [with {a food} in {his} pocket|to meet {friend}].",
    "It was {a weather} {day} in {town}. {name}, the {job}, [sat by the window and thought "
    "about {hobby}|was sweeping the steps|had just finished {his} work].",
    "In {town} there lived a young {job} called {name}, who loved {hobby}. One {day}, the air "
    "was {weather} and [the streets were quiet|everyone was in the {place}].",
    "Everyone in {town} knew {name} the {job}. {^he} [lived beside the {place}|had a small house "
    "near the {place}], and [on {a weather} {day}|one {weather} {day}] {he} woke up early.",
    "{name} and {friend} went to the {place}. It was {a weather} {day} in {town}, and {name}, who "
    "was {a job}, [talked about {hobby}|was in no hurry].",
)

ASIDES = (
    "[The wind smelled of grass and rain.|There was a smell of fresh bread in the air.]",
    "[Far away|Somewhere] a bell rang [{count} times|slowly].",
    "{^he} [ate|shared] {a food2} [and felt better|under a tree].",
    "[A {colour} bird|A small {animal}] watched [them|{him}] from [a wall|the roof].",
    "{name} [hummed a tune|whistled] and [thought of {elder}|thought about {hobby}].",
    "[For a while|For a long time] nobody [spoke|said a word].",
    "The {weather} sky [changed|grew darker] [slowly|little by little].",
    "An old {job2} [waved from a doorway|walked past with {a thing2}].",
    "[Children were playing|Two boats were resting] near the {place2}.",
    "{^he} counted {count} [steps|stones] and [took a deep breath|smiled].",
    "[The church clock|The clock on the {place2}] struck {count}.",
    "{friend} laughed and [told a joke about {a animal}|sang an old song].",
    "The path was [narrow|long] but [it was easy to follow|nobody was in a hurry].",
    "A cart full of [straw|wool] rolled by.",
)

# Between two chapters. The cast stays, the things change.
BRIDGES = (
    "Some weeks later, on {a weather} {day}, {name} was [again|once more] in the {place}.",
    "But that was not the end of it. The next {day} {name} [and {friend} met at|stood before] the {place}.",
    "After that nothing happened for {count} months. Then, one {weather} {day}, {name} came to "
    "the {place} again.",
    "The years went by. {name} was still {a job}, and on {day}s {he} always went to the {place}.",
    "[Soon after|Not long after], there was more to tell. It was {a weather} {day}.",
)

ENDINGS = (
    "[From that day on|After that], {name} and {friend} were [the best of friends|good friends].",
    "[That night|That evening], {name} slept well [and dreamed of {hobby}|in {his} own bed].",
    "And [whenever|each time] people in {town} [told the story|spoke of that {day}], {name} "
    "[smiled|only smiled].",
    "{name} never forgot that {day}, and {friend} [did not forget it either|never did either].",
    "[It had been a good day.|It was the best {day} of the year.] [The end.|]",
)
