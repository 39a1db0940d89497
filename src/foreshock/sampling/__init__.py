"""Samples of weights, gradients and moments; see `Sampling`."""

from foreshock.sampling.sample import Sampling as Sampling
from foreshock.sampling.sample import gradient_of as gradient_of
