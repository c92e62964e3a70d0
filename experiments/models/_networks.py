"""Image classifiers of transformers, changed where small images and training need it.

The file imports nothing of this repository: an exported model carries a copy of it, so that
``AutoModelForImageClassification.from_pretrained(folder, trust_remote_code=True)`` works anywhere.
"""

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForImageClassification,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import ImageClassifierOutput
from transformers.models.mobilenet_v2.modeling_mobilenet_v2 import MobileNetV2ForImageClassification
from transformers.models.resnet.configuration_resnet import ResNetConfig
from transformers.models.resnet.modeling_resnet import ResNetForImageClassification


class TrainableResNet(ResNetForImageClassification):
    """ResNet whose residual branches start at zero where ``config.zero_init_residual`` is true.

    The weight of each block's last norm is zero then (Goyal et al. 2017), so that a deep network
    starts as a shallow one. Weights and config are those of the class above.
    """

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        if getattr(config, "zero_init_residual", False):
            for stage in self.resnet.encoder.stages:
                for block in stage.layers:
                    nn.init.zeros_(block.layer[-1].normalization.weight)


class CifarResNetConfig(ResNetConfig):
    """ResNet whose stem keeps the resolution."""

    model_type = "cifar_resnet"


class CifarResNetForImageClassification(TrainableResNet):
    """ResNet with the stem that is usual on 32 x 32 images: a 3 x 3 convolution, no pooling."""

    config_class = CifarResNetConfig

    def __init__(self, config: CifarResNetConfig) -> None:
        super().__init__(config)
        stem = self.resnet.embedder
        stem.embedder.convolution = nn.Conv2d(
            config.num_channels, config.embedding_size, kernel_size=3, padding=1, bias=False
        )
        stem.pooler = nn.Identity()
        self._init_weights(stem.embedder.convolution)


class TrainableMobileNetV2(MobileNetV2ForImageClassification):
    """MobileNetV2 whose running statistics average over batches.

    The momentum of its norms reads 0.997, the share of the past; torch's is the share of the new
    batch, so that evaluation would see little more than the last batch. Weights and config are
    those of the class above.
    """

    def __init__(self, config) -> None:
        super().__init__(config)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 0.1


class MLPConfig(PretrainedConfig):
    """Sizes of a multilayer perceptron on images."""

    model_type = "image_mlp"

    def __init__(
        self,
        hidden_sizes=(300, 100),
        activation: str = "relu",
        dropout: float = 0.0,
        num_channels: int = 1,
        image_size: int = 28,
        **kwargs,
    ) -> None:
        self.hidden_sizes = list(hidden_sizes)
        self.activation = activation
        self.dropout = dropout
        self.num_channels = num_channels
        self.image_size = image_size
        super().__init__(**kwargs)


class SReLU(nn.Module):
    """S-shaped rectified linear unit of Jin et al. 2016 (arXiv:1512.07030), equation 1.

    The identity between two thresholds, with a slope of its own outside of each; all four are
    learned for each unit. It starts as a ReLU.
    """

    def __init__(self, num_units: int) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.full((num_units,), at)) for at in (0.0, 1.0))
        self.left_slope, self.right_slope = (
            nn.Parameter(torch.full((num_units,), slope)) for slope in (0.0, 1.0)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs (B, N) to outputs of the same shape."""
        low = self.left + self.left_slope * (inputs - self.left)
        high = self.right + self.right_slope * (inputs - self.right)
        return torch.where(
            inputs <= self.left, low, torch.where(inputs >= self.right, high, inputs)
        )


class MLPForImageClassification(PreTrainedModel):
    """Linear layers on flattened pixels, with an activation and dropout after each but the last.

    Weights start uniform as in Glorot and Bengio 2010, biases at zero.
    """

    config_class = MLPConfig
    main_input_name = "pixel_values"

    def __init__(self, config: MLPConfig) -> None:
        super().__init__(config)
        sizes = [config.num_channels * config.image_size**2, *config.hidden_sizes]
        sizes.append(config.num_labels)
        self.linears = nn.ModuleList(
            nn.Linear(before, after) for before, after in zip(sizes, sizes[1:], strict=False)
        )
        self.activations = nn.ModuleList(
            SReLU(size) if config.activation == "srelu" else nn.ReLU()
            for size in config.hidden_sizes
        )
        self.dropout = nn.Dropout(config.dropout)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(self, pixel_values: Tensor, **_) -> ImageClassifierOutput:
        """Logits (B, K) of images (B, C, S, S)."""
        hidden = pixel_values.flatten(1)
        for linear, activation in zip(self.linears, self.activations, strict=False):
            hidden = self.dropout(activation(linear(hidden)))
        return ImageClassifierOutput(logits=self.linears[-1](hidden))


AutoConfig.register(MLPConfig.model_type, MLPConfig)
AutoModelForImageClassification.register(MLPConfig, MLPForImageClassification)
MLPConfig.register_for_auto_class()
MLPForImageClassification.register_for_auto_class("AutoModelForImageClassification")
AutoConfig.register(CifarResNetConfig.model_type, CifarResNetConfig)
AutoModelForImageClassification.register(CifarResNetConfig, CifarResNetForImageClassification)
CifarResNetConfig.register_for_auto_class()
CifarResNetForImageClassification.register_for_auto_class("AutoModelForImageClassification")
