"""CIFAR-100 (Krizhevsky, 2009): 32 x 32 colour images of 100 classes."""

from experiments.data.hub_images import hub_images

# The hub spells one class "cra".
CLASSES = """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab
crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout
tulip turtle wardrobe whale willow_tree wolf woman worm""".split()

DATASETS = (
    hub_images(
        "cifar100",
        "uoft-cs/cifar100",
        config="cifar100",
        license="unknown; free for research as published by the University of Toronto",
        size=32,
        classes=CLASSES,
        image="img",
        label="fine_label",
    ),
)
