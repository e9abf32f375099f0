"""Small data sets that need no network, and the MNIST family's files."""

from anydevice.data.family import fashion_mnist as fashion_mnist
from anydevice.data.family import idx as idx
from anydevice.data.family import kmnist as kmnist
from anydevice.data.family import mnist as mnist
from anydevice.data.fetch import DownloadFailed as DownloadFailed
from anydevice.data.idx_format import DamagedFile as DamagedFile
from anydevice.data.images import Images as Images
from anydevice.data.shapes import shapes as shapes
