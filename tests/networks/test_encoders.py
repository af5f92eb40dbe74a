import sys
from functools import partial

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from stec.config import load
from stec.errors import UserError
from stec.networks import create_encoder, list_encoders
from stec.networks.encoders import _widened


def test_the_list_names_every_encoder():
    assert list_encoders() == [
        "resnet-small",
        "resnet18",
        "resnet18-cifar",
        "resnet18-stl",
        "resnet50",
        "resnet50-cifar",
        "resnet50-stl",
    ]


@pytest.mark.parametrize("name", list_encoders())
def test_features_have_the_announced_dimension(name):
    encoder = create_encoder(name).eval()
    with torch.no_grad():
        features = encoder(torch.rand(2, 3, 32, 32))
    assert features.shape == (2, encoder.dim)


# Parameters of torchvision's models less those of fc (513,000 and 2,049,000);
# a 3 x 3 stem has 64 * 3 * (49 - 9) fewer.
@pytest.mark.parametrize(
    ("name", "dim", "parameters"),
    [
        ("resnet18", 512, 11_689_512 - 513_000),
        ("resnet18-stl", 512, 11_689_512 - 513_000),
        ("resnet18-cifar", 512, 11_689_512 - 513_000 - 7_680),
        ("resnet50", 2048, 25_557_032 - 2_049_000),
        ("resnet50-cifar", 2048, 25_557_032 - 2_049_000 - 7_680),
        ("resnet-small", 128, 307_536),
    ],
)
def test_sizes(name, dim, parameters):
    encoder = create_encoder(name)
    assert encoder.dim == dim
    assert sum(p.numel() for p in encoder.parameters()) == parameters


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("resnet18", 224, 56),
        ("resnet18-stl", 96, 48),
        ("resnet18-cifar", 32, 32),
        ("resnet-small", 32, 16),
    ],
)
def test_the_stem_leaves_a_map_of_the_right_size(name, size, expected):
    encoder = create_encoder(name).eval()
    sides = []
    block = next(module for module in encoder.modules() if isinstance(module, BasicBlock))
    block.register_forward_hook(lambda module, inputs, output: sides.append(inputs[0].shape[-1]))
    with torch.no_grad():
        encoder(torch.rand(1, 3, size, size))
    assert sides == [expected]


@pytest.mark.parametrize("name", list_encoders())
def test_every_residual_block_starts_as_the_identity(name):
    blocks = [m for m in create_encoder(name).modules() if isinstance(m, (BasicBlock, Bottleneck))]
    assert blocks
    for block in blocks:
        last = block.bn3 if isinstance(block, Bottleneck) else block.bn2
        assert last.weight.count_nonzero() == 0
        assert block.bn1.weight.eq(1).all()


@pytest.mark.parametrize("name", list_encoders())
def test_convolutions_have_kaiming_initialisation(name):
    torch.manual_seed(0)
    for conv in (m for m in create_encoder(name).modules() if isinstance(m, nn.Conv2d)):
        outputs = conv.out_channels * conv.kernel_size[0] * conv.kernel_size[1]
        # the standard error of a standard deviation is std / sqrt(2 n): five of them
        assert conv.weight.std().item() == pytest.approx((2 / outputs) ** 0.5, rel=5 / (2 * conv.weight.numel()) ** 0.5)
        assert conv.bias is None


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_an_encoder_is_torchvisions_model_without_its_classifier(name):
    encoder = create_encoder(name)
    reference = getattr(torchvision.models, name)()
    keys = reference.load_state_dict(encoder.state_dict(), strict=False)
    assert keys.unexpected_keys == []
    assert keys.missing_keys == ["fc.weight", "fc.bias"]
    reference.fc = nn.Identity()
    images = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(encoder.eval()(images), reference.eval()(images))


@pytest.mark.parametrize("name", ["resnet18-cifar", "resnet18-stl", "resnet50-cifar", "resnet50-stl"])
def test_stems_keep_torchvisions_keys(name):
    reference = getattr(torchvision.models, name.partition("-")[0])()
    expected = [key for key in reference.state_dict() if not key.startswith("fc.")]
    assert list(create_encoder(name).state_dict()) == expected


def test_gradients_reach_every_parameter():
    encoder = create_encoder("resnet-small")
    for block in encoder.stages:
        nn.init.ones_(block.bn2.weight)  # at zero it would hide the convolutions before it
    encoder(torch.rand(8, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.count_nonzero() for p in encoder.parameters())


def test_unknown_names_are_the_users_error():
    with pytest.raises(UserError, match=r"^unknown encoder 'resnet18-cifra': did you mean 'resnet18-cifar'\?$"):
        create_encoder("resnet18-cifra")


def test_a_timm_model():
    encoder = create_encoder("timm:test_vit")
    features = encoder.eval()(torch.rand(2, 3, 64, 64))  # made for 160 pixels
    assert features.shape == (2, encoder.dim) == (2, 64)


def test_a_timm_model_with_a_wider_last_layer():
    encoder = create_encoder("timm:mobilenetv3_small_050")
    features = encoder.eval()(torch.rand(2, 3, 64, 64))
    assert features.shape == (2, encoder.dim) == (2, 1024)


def test_unknown_timm_models_are_the_users_error():
    with pytest.raises(UserError, match=r"^timm has no model 'convnext_ato': did you mean 'convnext_atto'\?$"):
        create_encoder("timm:convnext_ato")
    with pytest.raises(UserError, match=r"^timm has no model '#': timm.list_models\(\) lists them$"):
        create_encoder("timm:#")


def test_missing_timm_is_the_users_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)  # makes the import fail
    with pytest.raises(UserError, match=r"pip install 'stec\[timm\]'$"):
        create_encoder("timm:test_vit")


@pytest.mark.parametrize(("kernel", "stride", "side"), [(7, 2, 32), (7, 2, 31), (3, 1, 9), (5, 2, 16)])
def test_a_first_convolution_for_gpus_is_the_same_function(kernel, stride, side):
    conv = nn.Conv2d(3, 8, kernel, stride, kernel // 2, bias=False).double()
    images = torch.randn(2, 3, side, side, dtype=torch.float64)
    results = [function(images) for function in (conv, partial(_widened, conv))]
    torch.testing.assert_close(*results)
    gradients = [torch.autograd.grad(result.square().sum(), conv.weight)[0] for result in results]
    torch.testing.assert_close(*gradients)


def test_timm_is_told_what_stands_behind_commas():
    encoder = create_encoder("timm:test_vit,patch_size=4,img_size=32,qkv_bias=False")
    assert encoder.model.patch_embed.grid_size == (8, 8)
    assert encoder.model.blocks[0].attn.qkv.bias is None
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.dim)
    assert encoder(torch.rand(2, 3, 48, 48)).shape == (2, encoder.dim)
    for wrong in ("patch_size", "patch_size=", "=4", "4"):
        with pytest.raises(UserError, match="expected KEY=VALUE, as patch_size=4"):
            create_encoder(f"timm:test_vit,{wrong}")
    with pytest.raises(UserError, match=r"cannot build 'test_vit' without a classifier and with pach: .*'pach'"):
        create_encoder("timm:test_vit,pach=4")


@pytest.mark.parametrize(("recipe", "side"), [("cifar10-vit-tiny-stec", 8), ("imagenette-vit-small-stec", 12)])
def test_the_patches_of_a_recipe_fit_its_views(recipe, side):
    config = load(recipe)
    model = create_encoder(config.encoder).model
    assert model.patch_embed.img_size == (config.views.size, config.views.size)
    assert model.patch_embed.grid_size == (side, side)
    assert config.optimizer.name == "adamw"
