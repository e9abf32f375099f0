"""Small data sets that need no network, and the MNIST family's files."""

from anydevice.data.images import Images as Images
from anydevice.data.shapes import shapes as shapes
