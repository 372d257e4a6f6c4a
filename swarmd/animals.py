"""A name for a peer that people can say: two adjectives and an animal, made from its id.

The way of making it is that of RL Swarm v0.4 (`hivemind_exp/name_utils.py`): three bytes of the id's MD5 choose the
words. The words are swarmd's own, so the names differ from those of RL Swarm. About 13 million names: a label, no
identity.
"""

from __future__ import annotations

import hashlib

_ADJECTIVES = """
    able active agile airy alert amber ancient apt arctic ardent artful ashen astute autumn avid azure balanced
    balmy bold bonny bouncy brave breezy brief bright brisk bronze bubbly busy calm careful caring casual cautious
    cheerful chief chilly chirpy civil classy clean clever cloudy coastal cobalt colourful composed cool copper
    coral cordial cosmic cosy crafty creamy crimson crisp curious curly daily dainty dapper daring dazzling dear
    deft dense devoted diligent distant dreamy driven dry dusky dusty eager earnest earthy easy elder elegant elfin
    endless epic even exact fabled fair famous fancy fast fearless feathery festive fiery fine firm fleet floral
    fluent foggy fond forest frank free fresh friendly frosty frugal fuzzy gallant genuine giant giddy gifted glad
    gleaming glossy golden good graceful grand grassy great green growing guided handy happy hardy hasty hazel
    hearty helpful hidden hopeful humble hushed icy ideal indigo inventive ivory jade jaunty jolly joyful jumpy keen
    kind lasting lavish leafy lean level light lilac lively loyal lucid lucky lunar mellow merry mighty mild mindful
    misty modest mossy neat nimble noble northern novel olive open patient peaceful pearly placid playful plucky
    plump polite prime prompt proud quick quiet radiant rapid ready rosy rugged rustic sandy scarlet serene sharp
    shiny shy silent silky silver sleek sleepy slender smart snowy soft solar solid spirited spry stately stellar
    stormy sturdy subtle sunny supple sure swift tall tame tender thrifty timely tranquil trusty twilight upbeat
    valiant velvet vivid warm wary watchful wild wise witty woolly young zesty
"""
_ANIMALS = """
    aardwolf adder albatross alpaca angelfish anole ant antelope ape asp auk avocet baboon badger barbel barnacle
    basilisk bass bat beaver bee beluga bison bittern boa boar bongo bonobo booby bulbul bullfinch bunting bushbaby
    butterfly buzzard caiman canary capuchin caracal cardinal caribou cassowary cat catfish chaffinch chameleon
    chickadee chicken chipmunk cicada civet coati cobra cod condor coot cormorant cougar coyote crab crayfish
    cricket crocodile cuckoo curlew deer dingo dipper dolphin donkey dove dragonfly duck dunlin eagle eel egret
    elephant elk emu falcon ferret firefly flamingo flounder frog fulmar gar gazelle gecko gerbil gibbon gnu goat
    goldfinch gopher gorilla grebe grouse guanaco guppy haddock hamster hare hawk hedgehog heron hippo hoopoe horse
    hummingbird hyena ibis iguana jackal jackdaw jaguar jellyfish kangaroo kingfisher kite koala kookaburra kudu
    lamprey lapwing lemming lemur leopard lion lizard lobster loris lynx macaw magpie manatee mandrill mantis
    marmoset marmot martin meerkat mink mole mongoose moose moth mule muskox narwhal nightingale numbat ocelot
    octopus okapi orangutan orca oryx osprey ostrich owl ox panda pangolin parrot partridge peacock penguin perch
    pheasant pigeon pika pipit platypus polecat pony porcupine puffin puma quokka rabbit raccoon reindeer robin
    salmon sandpiper seahorse serval shark shrew skink skylark sloth snail sparrow squid starling stoat stork swan
    swift tapir tarsier tern tiger toad toucan trout viper vole vulture walrus warbler whale wolf wolverine
    woodpecker wren zebra
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
ANIMALS = tuple(_ANIMALS.split())


def animal_name(peer: str, separator: str = " ") -> str:
    """The name of a peer id, the same everywhere."""
    first, second, third = hashlib.md5(peer.encode(), usedforsecurity=False).digest()[:3]
    words = (ADJECTIVES[third % len(ADJECTIVES)], ADJECTIVES[second % len(ADJECTIVES)], ANIMALS[first % len(ANIMALS)])
    return separator.join(words)
