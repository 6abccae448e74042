"""Let pyiceberg read and write metadata through the same objects and client as the data."""

import io
from functools import lru_cache
from types import TracebackType
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.typedef import EMPTY_DICT, Properties

from vitrina.connectors.files import urls
from vitrina.connectors.files.objects import Objects
from vitrina.connectors.files.places import open_place
from vitrina.errors import FatalError

# The catalog property with the URL of its warehouse, including its keys. It is never stored.
WAREHOUSE = "vitrina.warehouse"


@lru_cache(maxsize=16)
def objects_of(warehouse: str) -> Objects:
    """Open a warehouse once, because pyiceberg asks for it for each table and each commit."""
    return open_place(urls.parse(warehouse))


class ObjectsIO(FileIO):
    """Access files of a warehouse by their locations."""

    def __init__(self, properties: Properties = EMPTY_DICT) -> None:
        super().__init__(properties)
        warehouse = str(properties[WAREHOUSE])
        self._objects = objects_of(warehouse)
        self._root = warehouse.partition("?")[0].rstrip("/") + "/"

    def name_of(self, location: str) -> str:
        """Return the object name of a location. Refuse a location outside the warehouse."""
        name = location.removeprefix(self._root)
        if name == location or ".." in name.split("/"):
            raise FatalError(f"{location} is not in the warehouse of the connection, {self._root}")
        return name

    def new_input(self, location: str) -> "ObjectFile":
        return ObjectFile(location, self.name_of(location), self._objects)

    def new_output(self, location: str) -> "ObjectFile":
        return ObjectFile(location, self.name_of(location), self._objects)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        text = location if isinstance(location, str) else location.location
        self._objects.delete([self.name_of(text)])


class ObjectFile(InputFile, OutputFile):
    """Read and write one object as a whole."""

    def __init__(self, location: str, name: str, objects: Objects) -> None:
        super().__init__(location)
        self._name = name
        self._objects = objects
        self._size: int | None = None

    def __len__(self) -> int:
        if self._size is None:
            self._size = len(self._objects.get(self._name))
        return self._size

    def exists(self) -> bool:
        return self._objects.find(self._name) is not None

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._objects.get(self._name))

    def to_input_file(self) -> "ObjectFile":
        return self

    def create(self, overwrite: bool = False) -> "Unwritten":
        return Unwritten(self)

    def put(self, content: memoryview) -> None:
        self._objects.put(self._name, content)
        self._size = content.nbytes


class Unwritten(io.BytesIO):
    """Collect the content of an object, and store it on close unless writing failed."""

    def __init__(self, file: ObjectFile) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            self._file.put(memoryview(self.getvalue()))
        super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            super().close()
