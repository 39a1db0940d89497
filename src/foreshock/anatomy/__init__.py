"""A model's parts, found by structure: embeddings, blocks, attention, FFN, norms, head.

Nothing is executed: only modules, their attributes and the shapes of parameters are read.
"""

from foreshock.anatomy.finding import anatomy_at as anatomy_at
from foreshock.anatomy.finding import anatomy_of as anatomy_of
from foreshock.anatomy.parts import Anatomy as Anatomy
from foreshock.anatomy.parts import AttentionPart as AttentionPart
from foreshock.anatomy.parts import Block as Block
from foreshock.anatomy.parts import Role as Role
