"""Image classifiers of transformers, changed where small images and training need it.

The file imports nothing of this repository: an exported model carries a copy of it, so that
``AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True)`` works anywhere.
"""

from torch import nn
from transformers import AutoConfig, AutoModelForImageClassification
from transformers.models.resnet.configuration_resnet import ResNetConfig
from transformers.models.resnet.modeling_resnet import ResNetForImageClassification


class TrainableResNet(ResNetForImageClassification):
    """ResNet whose residual branches start at zero.

    The weight of each block's last norm is zero then (Goyal et al. 2017), so that a deep network
    starts as a shallow one. Weights and config are those of the class above.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        for stage in self.resnet.encoder.stages:
            for block in stage.layers:  # type: ignore[union-attr]
                nn.init.zeros_(block.layer[-1].normalization.weight)


class CifarResNetConfig(ResNetConfig):
    """ResNet whose stem keeps the resolution."""

    model_type = "cifar_resnet"


class CifarResNetForImageClassification(TrainableResNet):
    """ResNet with the stem that is usual on 32 x 32 images: a 3 x 3 convolution, no pooling."""

    config_class = CifarResNetConfig

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        stem = self.resnet.embedder
        stem.embedder.convolution = nn.Conv2d(
            config.num_channels, config.embedding_size, kernel_size=3, padding=1, bias=False
        )
        stem.pooler = nn.Identity()  # type: ignore[assignment]
        self._init_weights(stem.embedder.convolution)


AutoConfig.register(CifarResNetConfig.model_type, CifarResNetConfig)
AutoModelForImageClassification.register(CifarResNetConfig, CifarResNetForImageClassification)
CifarResNetConfig.register_for_auto_class()
CifarResNetForImageClassification.register_for_auto_class("AutoModelForImageClassification")
