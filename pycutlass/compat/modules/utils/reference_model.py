"""References, under the original's name."""

from pycutlass.compat.reference_modules import Conv2dReferenceModule, ReferenceModule

__all__ = ["Conv2dReferenceModule", "ReferenceModule"]
