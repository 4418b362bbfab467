"""A job that is over before one has looked at it twice."""

import toy

rank = toy.begin()
toy.train(rank, steps=1)
toy.end()
