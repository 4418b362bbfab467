"""What a value can be, beside objects, functions and parameters (`Value.sort` tells of these)."""

from __future__ import annotations

LOCAL_RANK = ("local rank",)
RANKS = (("rank",), LOCAL_RANK)
BATCH = ("batch",)  # what a loader gave
CERTAIN = ("certain",)  # a constant, whatever is asked beside it
COUNT = ("count",)  # how many there are of something in the batch, or whether there are any
BESIDE = ("beside",)  # what a thread puts into it is there sooner on one rank than on another
GENERATOR = ("generator",)
DRAWS = ("draws",)  # a generator with a seed that each rank has for itself
SET = ("set",)
LISTING = ("listing", None)  # of a folder, or what was made in its order; with the sort of what is in it
INFERRED = ("inferred",)  # a DTensor that takes its shape from the shard of this rank
TEST = ("test",)  # the result of a comparison
PICKED = ("picked",)  # those of this rank's parameters that have something: whether there are any is its own affair
MULTIPLE = ("multiple",)  # a number that the ranks divide evenly
ENDLESS = ("endless",)  # a generator that never ends
REST = ("rest",)  # where the share of the last rank ends: it may be shorter, or longer
OWN_PATH = ("own path",)  # with the number of the rank in it: a file that others do not look for
EXCHANGED = ("exchanged",)  # as many rows as others send
OF_OTHERS = (
    "rows of others"  # in place of a group, of a condition on that: the layers for these rows are this rank's own
)
PADDED = ("padded",)  # to a length that divides evenly, perhaps
OWN_EVEN = ("padded", "own")  # this rank's share of what divides evenly
ROUNDED_UP = ("rounded up",)  # how many items each rank has, but the last
SAMPLE = ("sample",)  # one of the samples of a batch, as long as it happens to be
ROUNDS = ("share", "rounds")  # as many as this rank has drawn, or as its own file says
ENDS_BY_RANK = ("share", "ends by rank")  # a generator that says itself for which ranks it ends
TAKEN = ("rest", "taken")  # where it ends, if the last rank takes what is left over
LONGER = ("share", "longer")  # with that: more on the last rank
FILTERED = ("share", "filtered")  # out of which items drop that are no good, on each rank its own
MADE = ("share", "made")  # one of each item of a share
BLOCK = ("share", "block")  # from what the rank says to what the rank says
PART = ("share", "part")  # of what was split evenly as far as that goes
BLOCK_LENGTH = ("block length",)  # of such a part: of interest where the last ranks have nothing
BARE = ("bare",)  # a tensor of constants, without a graph
HALF = ("half bare",)  # such a one on some ranks, and one with a graph on others
LENGTH = ("length",)  # how long it is: of interest where it may be 0
COLLECTED = ("collected",)  # empty at first: whether there is anything in it is for each rank to see
RAW = ("raw",)  # the module inside a wrapper
INNER = ("inner",)  # the module inside a wrapper, whether there is one or not
FILLED = ("filled",)  # empty at first, and what is put in depends on the rank's own batch: perhaps nothing is
OWN_KEYS = ("own keys",)  # a dictionary whose keys are words of the rank's own batches
AGREED = ("agreed",)  # broadcast or reduced: the same on all ranks
CORE = ("core",)  # the core of a TPU that this rank has
PICKED_LAYER = ("picked layer",)  # of a module, by a word
OF_DRAWN = (
    "of drawn",
)  # a batch of one of several loaders, which this rank has drawn, and whose batches are of its own size
REPEATED = ("repeated",)  # as often as somebody gives
DRAW = ("draw",)  # what is drawn by a generator that somebody gives
GRID = ("mesh", "several")  # of more than one dimension
GRID_PART = ("mesh", "one")  # one dimension of several
GRID_GROUP = ("mesh", "of a group")
OF_ALL = ("group", "of all")  # a group of which all ranks are members
DEALT = ("dealt",)  # whether it is the turn of this rank: `i % world == rank`
PART_GROUP = ("group", "one of several")  # each rank is in another one of these
ALONE = ("alone",)  # a metric that keeps to itself where it is computed
