"""The models' part of the option table that is about pictures and sounds."""

from typing import ClassVar

from pydantic import model_validator

from server.options.table.devices import AUTO, OneDeviceSet
from server.options.table.hub import Url
from server.options.table.option import SettingsModel, option
from server.options.table.values import Bool, FilePath, Int


class MediaSettings(SettingsModel):
    """How a projector is loaded, and what becomes of media."""

    group: ClassVar[str] = "Images and audio"

    @model_validator(mode="after")
    def _one_device_and_a_range(self) -> "MediaSettings":
        if "," in self.mmproj_device[0]:
            raise ValueError("mmproj_device names several devices; a projector is on one")
        if 0 < self.image_max_tokens < self.image_min_tokens:
            raise ValueError("image_min_tokens is more than image_max_tokens")
        return self

    mmproj_auto: Bool = option(True, "--mmproj-auto", env=True, off=("--no-mmproj", "--no-mmproj-auto"))
    """Load the projector that lies beside a model of a folder or of the hub, so that it sees or hears."""
    mmproj_offload: Bool = option(True, "--mmproj-offload", env=True, off=True)
    """The projector computes on a GPU, where there is one."""
    mmproj_device: OneDeviceSet = option((AUTO,), "-mmdev --mmproj-device", env="MTMD_BACKEND_DEVICE", metavar="NAME")
    """The device of the projector: a name of --list-devices, none, or auto for the model's first."""
    image_min_tokens: Int = option(-1, "--image-min-tokens", env=True, ge=-1)
    """Least tokens of an image, where the projector takes images of any size; -1 = as its file says."""
    image_max_tokens: Int = option(-1, "--image-max-tokens", env=True, ge=-1)
    """Most tokens of an image, likewise: larger images are made smaller; -1 = as its file says."""
    mtmd_batch_max_tokens: Int = option(1024, "--mtmd-batch-max-tokens", env=True, ge=1)
    """Most tokens of images that are encoded together."""
    media_cache: Int = option(256, "--media-cache", metavar="MIB", ge=0)
    """MiB for embeddings of images and audio, so that one that was seen before isn't encoded again, in whatever slot or
    conversation; with cache_disk_path half of it there, for after a restart. 256 are about a hundred images of 256
    tokens for a model with embeddings of 2560 numbers. 0 = off. It is part of what `caches_ram` says of all caches."""
    media_marker: str = option("", env="LLAMA_MEDIA_MARKER")
    """What stands for a medium in the prompt of /completion with multimodal_data, as /props tells; empty = a text that
    nobody can guess, new at each load."""


class ProjectorSettings(SettingsModel):
    """Of one model."""

    group: ClassVar[str] = "Model"

    mmproj: FilePath | None = option(None, "-mm --mmproj", env=True)
    """The model's projector, a GGUF: with it, it takes images or audio."""
    mmproj_url: Url = option("", "-mmu --mmproj-url", env=True, metavar="URL")
    """An address of the projector; downloaded to mmproj where that is given, else into the cache."""
