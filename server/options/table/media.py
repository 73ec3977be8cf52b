"""Options of images and audio."""

from typing import ClassVar

from pydantic import model_validator

from server.options.table.devices import AUTO, OneDeviceSet
from server.options.table.hub import Url
from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath, Int


class MediaSettings(SettingsModel):
    """Projectors and media embeddings."""

    group: ClassVar[str] = "Images and audio"

    @model_validator(mode="after")
    def _one_device_and_a_range(self) -> "MediaSettings":
        if "," in self.mmproj_device[0]:
            raise ValueError("mmproj_device names several devices; a projector is on one")
        if 0 < self.image_max_tokens < self.image_min_tokens:
            raise ValueError("image_min_tokens is more than image_max_tokens")
        return self

    mmproj_auto: Bool = option(True, "--mmproj-auto", env=True, off=("--no-mmproj", "--no-mmproj-auto"))
    """Load the projector found next to a model in a folder or repository, which enables image or audio input."""
    mmproj_offload: Bool = option(True, "--mmproj-offload", env=True, off=True)
    """Run the projector on a GPU if there is one."""
    mmproj_device: OneDeviceSet = option((AUTO,), "-mmdev --mmproj-device", env="MTMD_BACKEND_DEVICE", metavar="NAME")
    """Device of the projector: a name from --list-devices, none, or auto = the model's first device."""
    image_min_tokens: Int = option(-1, "--image-min-tokens", env=True, ge=-1)
    """Least tokens per image, for projectors with dynamic resolution; -1 = as in the file."""
    image_max_tokens: Int = option(-1, "--image-max-tokens", env=True, ge=-1)
    """Most tokens per image, for projectors with dynamic resolution: larger images are scaled down; -1 = as in the
    file.
    """
    mtmd_batch_max_tokens: Int = option(1024, "--mtmd-batch-max-tokens", env=True, ge=1)
    """Most image tokens that are encoded in one batch."""
    media_cache: Int = option(256, "--media-cache", metavar="MIB", ge=0)
    """MiB of cached image and audio embeddings, shared by all slots and conversations; with cache_disk_path half of it
    on disk. 256 MiB hold about a hundred images of 256 tokens at embedding size 2560. 0 = off. Counts towards
    caches_ram.
    """
    media_marker: str = option("", env="LLAMA_MEDIA_MARKER")
    """Placeholder of a medium in the prompt of /completion with multimodal_data, shown in /props; empty = a random
    string per load.
    """


class ProjectorSettings(SettingsModel):
    """The projector of one model."""

    group: ClassVar[str] = "Model"

    mmproj: FilePath | None = option(None, "-mm --mmproj", env=True)
    """Multimodal projector (GGUF) of the model; enables image or audio input."""
    mmproj_url: Url = option("", "-mmu --mmproj-url", env=True, metavar="URL")
    """URL of the projector; downloaded to mmproj if given, otherwise into the cache."""
