"""Store the committed parts of a load in its checkpoint as ranges, not as the highest number of each epoch."""

from alembic import op

revision = "0017"
down_revision = "0016"

ACCEPTED_PARTS = """
-- {"7": 40} becomes {"7": [[0, 40]]}. Ledgers beside remote marts keep the old form until their next run writes them.
UPDATE etl.etl_state s
SET segments = (SELECT jsonb_object_agg(e.key, CASE WHEN jsonb_typeof(e.value) = 'number'
                                                    THEN jsonb_build_array(jsonb_build_array(0, e.value))
                                                    ELSE e.value END)
                FROM jsonb_each(s.segments) AS e)
WHERE s.segments <> '{}';
COMMENT ON COLUMN etl.etl_state.segments IS 'parts of the unfinished load that count: {epoch: [[first, last], ...]}';

-- A runner of an earlier version cannot read this form: it gets no claim. One that it has already, it keeps.
ALTER TABLE etl.etl_pipelines ADD COLUMN claim_format smallint;
COMMENT ON COLUMN etl.etl_pipelines.claim_format IS 'how the runner that holds the claim writes checkpoints';

CREATE FUNCTION etl.forget_claim_format() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.claim_format := NULL;
    RETURN NEW;
END $$;
CREATE TRIGGER forget_claim_format BEFORE UPDATE OF claim_id ON etl.etl_pipelines FOR EACH ROW
    WHEN (NEW.claim_id IS NULL)
    EXECUTE FUNCTION etl.forget_claim_format();

CREATE FUNCTION etl.refuse_claim_format() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this runner is of an earlier version than the metastore and cannot read its checkpoints'
        USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER refuse_claim_format AFTER UPDATE OF claim_id ON etl.etl_pipelines FOR EACH ROW
    WHEN (NEW.claim_id IS DISTINCT FROM OLD.claim_id AND NEW.claim_id IS NOT NULL
          AND NEW.claim_format IS DISTINCT FROM 2)
    EXECUTE FUNCTION etl.refuse_claim_format();
"""


def upgrade() -> None:
    op.get_bind().connection.cursor().execute(ACCEPTED_PARTS)
