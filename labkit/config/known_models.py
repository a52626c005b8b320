"""Well-known models, with their sizes and published accuracies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownModel:
    """A well-known model.

    Args:
        name: a name that ``parse_model_name`` accepts.
        parameters: trainable weights of the network for the images and classes that it was published for
            (``Architecture.published``).
        multiply_adds: of one image's forward pass, in convolutions and dense layers.
        receptive_field: side, in pixels, of the input region that one position of the last convolution or
            pool depends on.
        accuracy: published accuracy, from 0 to 1, on CIFAR-10's test images, or on ImageNet's validation
            images with one crop of each.
        source: where the accuracy was published.
    """

    name: str
    parameters: int
    multiply_adds: int
    receptive_field: int
    accuracy: float | None = None
    source: str = ""


_HE_2015 = "He et al. 2015, table 6"
_HE_2016 = "He et al. 2016, table 3"
_PYTORCHCV = "PyTorchCV, epoch chosen on the test set (its ResNet-{depth}: {accuracy})"
_KERAS = "keras.io/api/applications"
_TORCHVISION = "torchvision's IMAGENET1K_V1"
_HU_2017 = "Hu et al. 2017, table 2"
_CIFAR_MODELS = "chenyaofo/pytorch-cifar-models, with two more dense layers"

# The counts are those of the networks that labkit builds; tests/commands/test_models.py recomputes them.
KNOWN_MODELS = (
    KnownModel("resnet20", 269_722, 40_551_040, 81, 0.9125, _HE_2015),
    KnownModel("resnet32", 464_154, 68_862_592, 137, 0.9249, _HE_2015),
    KnownModel("resnet44", 658_586, 97_174_144, 193, 0.9283, _HE_2015),
    KnownModel("resnet56", 853_018, 125_485_696, 249, 0.9303, _HE_2015),
    KnownModel("resnet110", 1_727_962, 252_887_680, 501, 0.9357, _HE_2015),
    KnownModel("resnet110-v2", 1_727_962, 252_887_680, 501, 0.9363, _HE_2016),
    KnownModel(
        "se_resnet20", 272_095, 40_553_056, 81, 0.9399, _PYTORCHCV.format(depth=20, accuracy="94.03 %")
    ),
    KnownModel(
        "se_resnet56", 860_137, 125_491_744, 249, 0.9587, _PYTORCHCV.format(depth=56, accuracy="95.48 %")
    ),
    KnownModel("wide_resnet16_4", 2_748_890, 392_612_352, 53),
    KnownModel(
        "wide_resnet28_10",
        36_479_194,
        5_243_328_768,
        109,
        0.96,
        "Zagoruyko & Komodakis 2016, median of 5 runs",
    ),
    KnownModel("vgg11", 9_228_362, 152_769_536, 150, 0.9279, _CIFAR_MODELS),
    KnownModel("vgg13", 9_413_066, 228_267_008, 156, 0.94, _CIFAR_MODELS),
    KnownModel("vgg16", 14_724_042, 313_201_664, 212, 0.9416, _CIFAR_MODELS),
    KnownModel("vgg19", 20_035_018, 398_136_320, 268, 0.9391, _CIFAR_MODELS),
    KnownModel("alexnet", 2_472_266, 14_957_056, 167, 0.7722, "github.com/bearpaw/pytorch-classification"),
    KnownModel("lenet", 61_706, 416_520, 16),
    KnownModel("tutorial_cnn", 1_756_426, 32_778_112, 19, 0.86, "the tutorial, on crops of 24x24 pixels"),
    KnownModel(
        "fast", 1_971_328, 118_147_360, 51, 0.9401, "Jordan 2024, airbench94_muon.py, six views of each image"
    ),
    KnownModel("fast_residual", 3_205_924, 160_668_448, 79),
    KnownModel("vit", 5_350_090, 340_330_368, 4),
    KnownModel("convnext", 3_376_290, 44_288_640, 568),
    KnownModel("mobilenetv2", 2_236_682, 6_124_928, 491),
    KnownModel("imagenet_resnet18", 11_689_512, 1_814_073_344, 435, 0.6976, _TORCHVISION),
    KnownModel("imagenet_resnet34", 21_797_672, 3_663_761_408, 899, 0.7331, _TORCHVISION),
    KnownModel("imagenet_resnet50", 25_557_032, 3_857_973_248, 483, 0.749, _KERAS),
    KnownModel("imagenet_resnet50-v1.5", 25_557_032, 4_089_184_256, 427, 0.7613, _TORCHVISION),
    KnownModel("imagenet_resnet101", 44_549_160, 7_570_194_432, 1027, 0.764, _KERAS),
    KnownModel("imagenet_resnet152", 60_192_808, 11_282_415_616, 1507, 0.766, _KERAS),
    KnownModel("imagenet_se_resnet50", 28_088_024, 3_860_488_192, 483, 0.7671, _HU_2017),
    KnownModel("imagenet_alexnet", 61_100_840, 714_188_480, 195, 0.5652, _TORCHVISION),
    KnownModel("imagenet_vgg16", 138_357_544, 15_470_264_320, 212, 0.713, _KERAS),
    KnownModel("imagenet_vgg19", 143_667_240, 19_632_062_464, 268, 0.713, _KERAS),
)
