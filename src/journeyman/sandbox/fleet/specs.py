"""The templates that were built through a fleet: a node that lacks one builds it itself."""

from sqlalchemy import insert, select

from journeyman.sandbox.client.template import TemplateSpec
from journeyman.sandbox.fleet.schema import templates
from journeyman.store.codec import pack, unpack
from journeyman.store.database import Database


class Specs:
    """Template id → what it is made of. The id is a digest, so nothing here ever changes. Calls
    block for milliseconds, as those of the store do."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, template: str, spec: TemplateSpec) -> None:
        with self._database.write() as connection:
            known = select(templates.c.id).where(templates.c.id == template)
            if connection.scalar(known) is None:
                connection.execute(insert(templates).values(id=template, spec=pack(spec)))

    def get(self, template: str) -> TemplateSpec | None:
        """None for one that was not built through this fleet."""
        query = select(templates.c.spec).where(templates.c.id == template)
        with self._database.read() as connection:
            body = connection.scalar(query)
        return unpack(TemplateSpec, body) if body is not None else None
