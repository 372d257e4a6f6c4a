"""A pronounceable name for a peer: two adjectives and an animal, made from its id.

As in RL Swarm v0.4 (`hivemind_exp/name_utils.py`), three bytes of the id's MD5 choose the words. The words are swarmd's
own, so the names differ from RL Swarm's. There are about 13 million names: a label, not an identity. If a user brings
an identity from RL Swarm, its words are read from the user's copy of that.
"""

import ast
import hashlib
from typing import NamedTuple

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


class Words(NamedTuple):
    adjectives: tuple[str, ...]
    animals: tuple[str, ...]


OWN = Words(ADJECTIVES, ANIMALS)
RL_SWARM_SHA256 = Words(  # SHA-256 of RL Swarm's two lists, one word a line
    ("e0dc1b2de5a4c184e67857321eac3d3270b8637ac4c2b90d46566985fb506f57",),
    ("53e22e84947d99815014e64a326e5ec4f4996cf30961e1be4ce90f5cbc461fe8",),
)


def animal_name(peer: str, separator: str = " ", words: Words = OWN) -> str:
    """The name of a peer id; the same on every machine."""
    adjectives, animals = words
    first, second, third = hashlib.md5(peer.encode(), usedforsecurity=False).digest()[:3]
    chosen = (adjectives[third % len(adjectives)], adjectives[second % len(adjectives)], animals[first % len(animals)])
    return separator.join(chosen)


def read_words(source: str) -> Words | None:
    """Read RL Swarm's word lists from the text of its `name_utils.py`, without running it; None if they are not in it.

    The lists are recognised by their digests, wherever they stand in the file and whatever they are called.
    """
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        if isinstance(node, ast.List | ast.Tuple):
            items = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            listed = tuple(item for item in items if isinstance(item, str))
            found[hashlib.sha256("\n".join(listed).encode(errors="replace")).hexdigest()] = listed
    (adjectives,), (animals,) = RL_SWARM_SHA256
    if adjectives not in found or animals not in found:
        return None
    return Words(found[adjectives], found[animals])
