--## second statement
SELECT 1; SELECT 2
--## second statement
SELECT 1; DROP TABLE content.film_work
--## second statement
SELECT id FROM content.film_work; DELETE FROM content.film_work; --
--## second statement
SELECT 1;/* */;COMMIT
--## second statement
SELECT 1; ROLLBACK; DROP SCHEMA content CASCADE
--## second statement
SELECT ';'; TRUNCATE ugc.ratings
--## statement INSERT
INSERT INTO content.genre (name) VALUES ('x')
--## statement INSERT
INSERT INTO content.genre SELECT * FROM content.genre RETURNING *
--## statement UPDATE
UPDATE content.film_work SET title = 'x'
--## statement DELETE
DELETE FROM content.film_work
--## statement MERGE
MERGE INTO content.genre g USING content.genre s ON g.id = s.id WHEN MATCHED THEN DELETE
--## statement TRUNCATE
TRUNCATE content.film_work
--## statement DROP
DROP TABLE content.film_work
--## statement CREATE
CREATE TABLE content.x AS SELECT 1
--## statement CREATE
CREATE FUNCTION content.f() RETURNS int LANGUAGE sql AS 'SELECT 1'
--## statement ALTER
ALTER ROLE vitrina_reader SUPERUSER
--## statement GRANT
GRANT ALL ON ALL TABLES IN SCHEMA etl TO public
--## statement REVOKE
REVOKE ALL ON content.film_work FROM vitrina_app
--## statement COPY
COPY content.film_work TO '/tmp/x'
--## statement COPY
COPY (SELECT 1) TO PROGRAM 'id'
--## statement DO
DO $$ BEGIN PERFORM pg_sleep(10); END $$
--## statement SET
SET ROLE vitrina_app
--## statement SET
SET SESSION AUTHORIZATION postgres
--## statement SET
SET transaction_read_only = off
--## statement RESET
RESET ALL
--## statement SHOW
SHOW ALL
--## statement BEGIN
BEGIN READ WRITE
--## statement COMMIT
COMMIT
--## statement COMMIT
COMMIT; DROP TABLE content.genre
--## statement END
END
--## statement SAVEPOINT
SAVEPOINT a
--## statement PREPARE
PREPARE p AS DELETE FROM content.genre
--## statement EXECUTE
EXECUTE p
--## statement DEALLOCATE
DEALLOCATE ALL
--## statement DECLARE
DECLARE c CURSOR WITH HOLD FOR SELECT 1
--## statement FETCH
FETCH ALL FROM c
--## statement LISTEN
LISTEN channel
--## statement NOTIFY
NOTIFY channel, 'payload'
--## statement LOCK
LOCK TABLE content.film_work IN ACCESS EXCLUSIVE MODE
--## statement VACUUM
VACUUM FULL content.film_work
--## statement ANALYZE
ANALYZE content.film_work
--## statement EXPLAIN
EXPLAIN ANALYZE DELETE FROM content.film_work
--## statement CALL
CALL content.p()
--## statement CHECKPOINT
CHECKPOINT
--## statement CLUSTER
CLUSTER content.film_work
--## statement REFRESH
REFRESH MATERIALIZED VIEW content.v
--## statement DISCARD
DISCARD ALL
--## statement SECURITY
SECURITY LABEL ON TABLE content.film_work IS 'x'
--## statement IMPORT
IMPORT FOREIGN SCHEMA public FROM SERVER s INTO content
--## statement LOAD
LOAD '/tmp/evil.so'
--## statement COMMENT
COMMENT ON TABLE content.film_work IS 'x'
--## statement REINDEX
REINDEX TABLE content.film_work
--## empty query

--## empty query
-- nothing
/* at all */
--## statement ;
;
--## statement DELETE
WITH gone AS (DELETE FROM content.film_work RETURNING *) SELECT * FROM gone
--## statement INSERT
WITH x AS (INSERT INTO content.genre (name) VALUES ('x') RETURNING id) SELECT id FROM x
--## statement UPDATE
WITH x AS MATERIALIZED (UPDATE content.film_work SET title = '' RETURNING *) SELECT * FROM x
--## statement MERGE
WITH x AS NOT MATERIALIZED (MERGE INTO content.genre g USING content.genre s ON false WHEN MATCHED THEN DELETE) SELECT 1
--## statement DELETE
WITH a AS (SELECT 1), b AS (DELETE FROM ugc.ratings) SELECT * FROM a
--## statement DELETE
WITH a AS (WITH b AS (DELETE FROM ugc.ratings RETURNING *) SELECT * FROM b) SELECT * FROM a
--## statement DELETE
SELECT * FROM content.film_work WHERE id IN (WITH d AS (DELETE FROM ugc.ratings RETURNING film_id) SELECT film_id FROM d)
--## statement INSERT
WITH x AS (SELECT 1 AS a) INSERT INTO content.genre SELECT * FROM x
--## statement DELETE
WITH x AS (SELECT 1) DELETE FROM content.film_work
--## statement UPDATE
WITH x AS (SELECT 1) UPDATE content.film_work SET title = ''
--## statement DELETE
WITH RECURSIVE r AS (DELETE FROM content.genre RETURNING id) SELECT * FROM r
--## SELECT INTO
SELECT * INTO content.copy FROM content.film_work
--## SELECT INTO
SELECT id INTO TEMP t FROM content.film_work
--## SELECT INTO
SELECT 1 INTO UNLOGGED content.x
--## SELECT INTO
SELECT INTO content.x FROM content.film_work
--## SELECT INTO
(SELECT 1 AS a INTO content.y UNION SELECT 2)
--## SELECT INTO
WITH x AS (SELECT 1 AS a) SELECT a INTO content.z FROM x
--## FOR UPDATE
SELECT * FROM content.film_work FOR UPDATE
--## FOR NO
SELECT * FROM content.film_work FOR NO KEY UPDATE
--## FOR SHARE
SELECT * FROM content.film_work ORDER BY id FOR SHARE SKIP LOCKED
--## FOR KEY
SELECT * FROM content.film_work LIMIT 1 FOR KEY SHARE NOWAIT
--## FOR UPDATE
SELECT * FROM (SELECT id FROM content.film_work FOR UPDATE) x
--## FOR UPDATE
SELECT * FROM content.film_work WHERE id = (SELECT id FROM content.genre LIMIT 1 FOR UPDATE)
--## FOR UPDATE
((SELECT id FROM content.film_work) FOR UPDATE)
--## FOR READ
SELECT 1 FOR READ ONLY
--## function pg_sleep
SELECT pg_sleep(600)
--## function pg_sleep
SELECT PG_SLEEP(600)
--## function pg_sleep
SELECT "pg_sleep"(600)
--## function pg_catalog.pg_sleep
SELECT pg_catalog.pg_sleep(600)
--## function pg_catalog.pg_sleep
SELECT "pg_catalog" . "pg_sleep" (600)
--## function pg_sleep
SELECT pg_sleep/**/(600)
--## function pg_sleep
SELECT pg_sleep -- a comment
 (600)
--## function pg_sleep_for
SELECT pg_sleep_for('1 hour')
--## function pg_sleep_until
SELECT pg_sleep_until('tomorrow')
--## function pg_sleep
SELECT * FROM pg_sleep(600)
--## function pg_sleep
SELECT * FROM content.film_work, LATERAL pg_sleep(1)
--## function pg_sleep
SELECT * FROM ROWS FROM (generate_series(1, 2), pg_sleep(1)) AS x (a, b)
--## function pg_sleep
SELECT id FROM content.film_work ORDER BY pg_sleep(1)
--## function pg_sleep
SELECT id FROM content.film_work GROUP BY id, pg_sleep(1)
--## function pg_sleep
SELECT id FROM content.film_work LIMIT (SELECT 1 FROM pg_sleep(1))
--## function pg_sleep
SELECT count(*) FILTER (WHERE pg_sleep(1) IS NULL) FROM content.film_work
--## function pg_sleep
SELECT sum(1) OVER (PARTITION BY pg_sleep(1)) FROM content.film_work
--## function pg_sleep
SELECT CASE WHEN true THEN pg_sleep(1) END
--## function pg_sleep
SELECT ARRAY[pg_sleep(1)]
--## function pg_sleep
SELECT (ARRAY['a'])[(SELECT 1 FROM pg_sleep(1))]
--## function pg_sleep
VALUES (pg_sleep(1))
--## function pg_sleep
SELECT a.id FROM content.film_work a JOIN content.genre b ON pg_sleep(1) IS NULL
--## function pg_sleep
SELECT ROW(1, pg_sleep(1))
--## function pg_sleep
SELECT coalesce(NULL, pg_sleep(1)::text)
--## function pg_sleep
SELECT id FROM content.film_work WINDOW w AS (ORDER BY pg_sleep(1))
--## function pg_sleep
SELECT DISTINCT ON (pg_sleep(1)) id FROM content.film_work
--## function pg_sleep
SELECT substring('abc' FROM 1 FOR (SELECT 1 FROM pg_sleep(1)))
--## function pg_sleep
SELECT extract(year FROM pg_sleep(1))
--## function pg_sleep
SELECT id FROM content.film_work TABLESAMPLE bernoulli (pg_sleep(1))
--## function pg_sleep
SELECT json_object('a' VALUE pg_sleep(1))
--## function pg_sleep
SELECT * FROM json_table('{}'::jsonb, '$' PASSING pg_sleep(1) AS x COLUMNS (a int PATH '$'))
--## function pg_sleep
SELECT 1 WHERE 1 = ANY (SELECT 1 FROM pg_sleep(1))
--## function pg_sleep
SELECT 1 IN (1, 2, pg_sleep(1))
--## function pg_sleep
SELECT make_interval(days => pg_sleep(1))
--## function pg_sleep
SELECT (600::float8).pg_sleep
--## function pg_read_file
SELECT ('/etc/passwd'::text).pg_read_file
--## function pg_read_file
SELECT (ARRAY['/etc/passwd'::text])[1].pg_read_file
--## function pg_read_file
SELECT (t.path).pg_read_file FROM (SELECT '/etc/passwd'::text AS path) AS t
--## function pg_read_file
SELECT p.pg_read_file FROM lower('/etc/passwd') AS p
--## function pg_ls_dir
SELECT p."pg_ls_dir" FROM cast('/' AS text) AS p
--## function pg_sleep
SELECT (s).pg_sleep FROM generate_series(1, 3) AS s
--## function nextval
SELECT ('content.numbers').nextval
--## function regclass
SELECT ('etl.etl_pipelines').regclass
--## function pg_terminate_backend
SELECT pid.pg_terminate_backend FROM generate_series(1, 100000) AS pid
--## function current_setting
SELECT ('data_directory').current_setting
--## function lo_import
SELECT ((('/etc/passwd'::text))).lo_import
--## function ts_stat
SELECT (('SELECT 1'::text).ts_stat).word
--## function to_regclass
SELECT ('etl.x').to_regclass
--## function pg_advisory_lock
SELECT x.pg_advisory_lock FROM unnest(ARRAY[1, 2]) AS x
--## function pg_stat_get_activity
SELECT (NULL::int).pg_stat_get_activity
--## function pg_read_file
SELECT pg_read_file('/etc/passwd')
--## function pg_read_binary_file
SELECT pg_read_binary_file('postgresql.conf')
--## function pg_ls_dir
SELECT * FROM pg_ls_dir('.')
--## function pg_ls_waldir
SELECT * FROM pg_ls_waldir()
--## function pg_stat_file
SELECT * FROM pg_stat_file('postgresql.conf')
--## function pg_current_logfile
SELECT pg_current_logfile()
--## function lo_import
SELECT lo_import('/etc/passwd')
--## function lo_export
SELECT lo_export(1, '/tmp/x')
--## function lo_create
SELECT lo_create(0)
--## function lo_unlink
SELECT lo_unlink(1)
--## function lo_put
SELECT lo_put(1, 0, 'x')
--## function lo_from_bytea
SELECT lo_from_bytea(0, 'x')
--## function lowrite
SELECT lowrite(1, 'x')
--## function loread
SELECT loread(1, 10)
--## function lo_get
SELECT lo_get(16384)
--## function dblink
SELECT * FROM dblink('dbname=postgres', 'SELECT 1') AS t (a int)
--## function dblink_exec
SELECT dblink_exec('host=127.0.0.1', 'DROP TABLE x')
--## function public.dblink_connect
SELECT public.dblink_connect('c', 'host=127.0.0.1')
--## function set_config
SELECT set_config('transaction_read_only', 'off', false)
--## function set_config
SELECT * FROM content.film_work WHERE set_config('role', 'postgres', true) = 'x'
--## function current_setting
SELECT current_setting('data_directory')
--## function pg_catalog.set_config
SELECT pg_catalog.set_config('search_path', 'etl', false)
--## function pg_terminate_backend
SELECT pg_terminate_backend(1)
--## function pg_cancel_backend
SELECT pg_cancel_backend(1)
--## function pg_reload_conf
SELECT pg_reload_conf()
--## function pg_rotate_logfile
SELECT pg_rotate_logfile()
--## function pg_switch_wal
SELECT pg_switch_wal()
--## function pg_create_restore_point
SELECT pg_create_restore_point('x')
--## function pg_promote
SELECT pg_promote()
--## function pg_create_logical_replication_slot
SELECT pg_create_logical_replication_slot('s', 'pgoutput')
--## function pg_drop_replication_slot
SELECT pg_drop_replication_slot('s')
--## function pg_logical_emit_message
SELECT pg_logical_emit_message(false, 'a', 'b')
--## function pg_advisory_lock
SELECT pg_advisory_lock(1)
--## function pg_try_advisory_lock
SELECT pg_try_advisory_lock(1)
--## function pg_advisory_xact_lock_shared
SELECT pg_advisory_xact_lock_shared(1, 2)
--## function pg_advisory_unlock_all
SELECT pg_advisory_unlock_all()
--## function pg_notify
SELECT pg_notify('vitrina', 'run')
--## function query_to_xml
SELECT query_to_xml('SELECT * FROM etl.etl_api_tokens', true, true, '')
--## function table_to_xml
SELECT table_to_xml('etl.etl_api_tokens', true, true, '')
--## function schema_to_xml
SELECT schema_to_xml('etl', true, true, '')
--## function database_to_xml
SELECT database_to_xml(true, true, '')
--## function cursor_to_xml
SELECT cursor_to_xml('c', 1, true, true, '')
--## function query_to_xmlschema
SELECT query_to_xmlschema('SELECT 1', true, true, '')
--## function ts_stat
SELECT * FROM ts_stat('SELECT to_tsvector(token_hash) FROM etl.etl_api_tokens')
--## function ts_rewrite
SELECT ts_rewrite('a'::tsquery, 'SELECT ''a''::tsquery, ''b''::tsquery FROM etl.etl_api_tokens')
--## function xmltable
SELECT * FROM xmltable('/a' PASSING '<a/>' COLUMNS b text)
--## function nextval
SELECT nextval('content.numbers')
--## function setval
SELECT setval('content.numbers', 1)
--## function currval
SELECT currval('content.numbers')
--## function lastval
SELECT lastval()
--## function txid_current
SELECT txid_current()
--## function pg_current_xact_id
SELECT pg_current_xact_id()
--## function pg_export_snapshot
SELECT pg_export_snapshot()
--## function pg_stat_reset
SELECT pg_stat_reset()
--## function setseed
SELECT setseed(0.5)
--## function has_table_privilege
SELECT has_table_privilege('etl.etl_api_tokens', 'SELECT')
--## function pg_get_viewdef
SELECT pg_get_viewdef('content.v')
--## function pg_get_functiondef
SELECT pg_get_functiondef(1)
--## function pg_relation_size
SELECT pg_relation_size('etl.etl_runs')
--## function obj_description
SELECT obj_description(1)
--## function to_regclass
SELECT to_regclass('etl.etl_api_tokens')
--## function format_type
SELECT format_type(1, 1)
--## function pg_input_is_valid
SELECT pg_input_is_valid('etl.etl_api_tokens', 'regclass')
--## function pg_typeof
SELECT coalesce(pg_typeof(1), 'etl.etl_api_tokens')
--## function current_database
SELECT current_database()
--## function version
SELECT version()
--## function inet_server_addr
SELECT inet_server_addr()
--## function pg_backend_pid
SELECT pg_backend_pid()
--## function current_query
SELECT current_query()
--## function current_user
SELECT current_user
--## function session_user
SELECT session_user
--## function user
SELECT user
--## function current_schema
SELECT current_schema
--## function current_schema
SELECT current_schema()
--## function current_catalog
SELECT current_catalog
--## function system_user
SELECT system_user
--## function current_role
SELECT current_role
--## function pg_stat_get_activity
SELECT * FROM pg_stat_get_activity(NULL)
--## function pg_show_all_settings
SELECT * FROM pg_show_all_settings()
--## function pg_hba_file_rules
SELECT * FROM pg_hba_file_rules()
--## function binary_upgrade_set_next_pg_type_oid
SELECT binary_upgrade_set_next_pg_type_oid(1)
--## function brin_summarize_new_values
SELECT brin_summarize_new_values('content.i')
--## function crosstab
SELECT * FROM crosstab('SELECT 1, 2, 3') AS t (a int, b int)
--## function public.run_as_owner
SELECT public.run_as_owner('DROP TABLE content.film_work')
--## function run_as_owner
SELECT run_as_owner('DROP TABLE content.film_work')
--## function content.delete_everything
SELECT content.delete_everything()
--## function content.delete_everything
SELECT * FROM content.delete_everything()
--## function public.lower
SELECT public.lower('x')
--## function pg_temp.f
SELECT pg_temp.f()
--## function vitrina.pg_catalog.lower
SELECT vitrina.pg_catalog.lower('x')
--## function Lower
SELECT "Lower"('x')
--## function lower 
SELECT "lower "('x')
--## function regclass
SELECT regclass('etl.etl_api_tokens')
--## function lanme
SELECT lanme(1)
--## type regclass
SELECT 'etl.etl_api_tokens'::regclass
--## type regclass
SELECT CAST('etl.etl_api_tokens' AS regclass)
--## type regclass
SELECT regclass 'etl.etl_api_tokens'
--## type pg_catalog.regclass
SELECT 'etl.etl_api_tokens'::pg_catalog.regclass
--## type regclass
SELECT 'etl.etl_api_tokens'::"regclass"
--## type pg_catalog.regclass
SELECT pg_catalog.regclass 'etl.etl_api_tokens'
--## type regclass
SELECT '{etl.etl_api_tokens}'::regclass[]
--## type regproc
SELECT 'pg_sleep'::regproc
--## type regprocedure
SELECT 'pg_sleep(float8)'::regprocedure::oid
--## type regrole
SELECT 'postgres'::regrole
--## type regnamespace
SELECT 'etl'::regnamespace
--## type regtype
SELECT 'etl.etl_runs'::regtype
--## type regoper
SELECT '+'::regoper
--## type regcollation
SELECT '"C"'::regcollation
--## type aclitem
SELECT 'postgres=r/postgres'::aclitem
--## type regclass
SELECT * FROM jsonb_to_recordset('[{"a": "etl.etl_runs"}]') AS t (a regclass)
--## type regclass
SELECT * FROM json_table('[]'::jsonb, '$' COLUMNS (a regclass PATH '$'))
--## type regclass
SELECT json_value('"etl.etl_runs"'::jsonb, '$' RETURNING regclass)
--## type regclass
SELECT y::regclass FROM (SELECT 1 AS tableoid_) AS x, (SELECT 2 AS y) AS z WHERE y::regclass IS NULL
--## column tableoid
SELECT tableoid FROM content.film_work
--## column tableoid
SELECT f.tableoid::regclass FROM content.film_work AS f
--## column xmin
SELECT xmin FROM content.film_work
--## column cmax
SELECT f."cmax" FROM content.film_work AS f
--## type etl.secret_domain
SELECT 'x'::etl.secret_domain
--## type public.evil
SELECT CAST(1 AS public.evil)
--## type pg_catalog.pg_class
SELECT NULL::pg_catalog.pg_class
--## type pg_authid
SELECT (NULL::pg_authid).rolpassword
--## type vitrina.content.mood
SELECT 'sad'::vitrina.content.mood
--## type cstring
SELECT 'x'::cstring
--## type record
SELECT ROW(1)::record
--## type internal
SELECT NULL::internal
--## type evil
SELECT evil 'x'
--## type content
SELECT content 'x'
--## type setof
SELECT 1::setof int
--## OPERATOR()
SELECT 1 OPERATOR(public.+) 2
--## OPERATOR()
SELECT 1 OPERATOR(pg_catalog.+) 2
--## OPERATOR()
SELECT * FROM content.film_work WHERE title OPERATOR(content.=) 'x'
--## function operator
SELECT OPERATOR(public.-) 1
--## ORDER BY USING
SELECT id FROM content.film_work ORDER BY id USING OPERATOR(public.<)
--## ORDER BY USING
SELECT id FROM content.film_work ORDER BY id USING >
--## operator |<>|
SELECT 1 |<>| 2
--## operator `
SELECT 1 ` 2
--## operator ===
SELECT 1 === 2
--## unicode escape
SELECT U&"pg\005fsleep"(1)
--## unicode escape
SELECT * FROM U&"\0065tl".etl_runs
--## unicode escape
SELECT U&"d!0061t!+000061" UESCAPE '!' FROM content.film_work
--## string
SELECT 'a\' || pg_sleep(10) || '
--## second statement
SELECT '\'; DROP TABLE content.film_work; --'
--## string
SELECT E'a'
'b', pg_sleep(10)::text || '\''
--## string
SELECT 'never closed
--## string
SELECT E'never closed\'
--## string
SELECT $a$ never closed $b$
--## string
SELECT B'012'
--## identifier
SELECT "never closed
--## identifier
SELECT ""
--## comment
SELECT 1 /* never /* closed */
--## comment
SELECT 1 /*
--## function pg_sleep
SELECT /* /* nested */ SELECT 1 */ pg_sleep(1)
--## function pg_sleep
SELECT 1 /* '*/, pg_sleep(1) --'
--## function pg_sleep
SELECT 1 -- /*
, pg_sleep(1) -- */
--## second statement
SELECT $$;$$; DROP TABLE content.film_work
--## function pg_sleep
SELECT $a$ $b$ $a$, pg_sleep(1), $c$ $c$
--## function a$$
SELECT a$$(1)
--## function pg_sleep
SELECT E'\\', pg_sleep(1), E'\\'
--## function pg_sleep
SELECT 'it''s', pg_sleep(1)
--## function pg_sleep
SELECT ''''||pg_sleep(1)||''''
--## second statement
SELECT E'\''; DROP TABLE content.film_work; --'
--## function pg_sleep
SELECT 1+/*x*/pg_sleep(1)
--## function pg_sleep
SELECT 2 */**/ pg_sleep(1)
--## number
SELECT 1pg_sleep(1)
--## number
SELECT 0x
--## syntax at )
SELECT 1) UNION SELECT token_hash FROM etl.etl_api_tokens --
--## syntax at )
SELECT id FROM content.film_work) AS q; DROP TABLE content.film_work; SELECT * FROM (SELECT 1
--## statement )
) SELECT 1 (
--## syntax at end of the query
(SELECT 1
--## syntax at end of the query
SELECT * FROM (SELECT 1
--## syntax at )
SELECT 1 FROM content.film_work) q, (SELECT 2
--## syntax at ]
SELECT 1]
--## table etl.etl_api_tokens
SELECT * FROM etl.etl_api_tokens
--## table etl.etl_pipelines
SELECT * FROM "etl"."etl_pipelines"
--## table etl.etl_pipelines
TABLE etl.etl_pipelines
--## table etl.etl_runs
SELECT 1 UNION ALL TABLE etl.etl_runs
--## table etl.etl_runs
(TABLE etl.etl_runs)
--## table etl.etl_runs
SELECT * FROM ONLY etl.etl_runs
--## table etl.etl_runs
SELECT * FROM ONLY (etl.etl_runs)
--## table etl.etl_runs
SELECT * FROM etl.etl_runs *
--## table etl.etl_runs
SELECT * FROM content.film_work, etl.etl_runs
--## table etl.etl_runs
SELECT * FROM content.film_work NATURAL JOIN etl.etl_runs
--## table etl.etl_runs
SELECT * FROM content.film_work f JOIN (content.genre g CROSS JOIN etl.etl_runs) ON true
--## table etl.etl_runs
SELECT * FROM ((etl.etl_runs))
--## table etl.etl_runs
SELECT * FROM ((content.genre a JOIN content.genre b USING (id)) JOIN etl.etl_runs r ON true) x
--## table etl.etl_runs
SELECT (SELECT count(*) FROM etl.etl_runs)
--## table etl.etl_runs
SELECT EXISTS (SELECT FROM etl.etl_runs)
--## table etl.etl_runs
SELECT ARRAY(SELECT id FROM etl.etl_runs)
--## table etl.etl_runs
SELECT 1 WHERE 1 IN (SELECT 1 FROM etl.etl_runs)
--## table etl.etl_runs
SELECT 1 = ALL (SELECT 1 FROM etl.etl_runs)
--## table etl.etl_runs
SELECT * FROM content.film_work f, LATERAL (SELECT * FROM etl.etl_runs) r
--## table etl.etl_runs
SELECT id FROM content.film_work ORDER BY (SELECT 1 FROM etl.etl_runs)
--## table etl.etl_runs
SELECT id FROM content.film_work OFFSET (SELECT 1 FROM etl.etl_runs)
--## table etl.etl_runs
SELECT id FROM content.film_work UNION SELECT id FROM etl.etl_runs
--## table etl.etl_runs
SELECT id FROM content.film_work EXCEPT (SELECT id FROM etl.etl_runs)
--## table etl.etl_runs
((SELECT 1) INTERSECT (SELECT 1 FROM etl.etl_runs))
--## table etl.etl_runs
SELECT ((SELECT 1) + (SELECT 1 FROM etl.etl_runs))
--## table etl.etl_runs
SELECT (((SELECT 1) UNION SELECT 2 FROM etl.etl_runs))
--## table etl.etl_runs
SELECT * FROM (((SELECT 1) UNION (SELECT 2 FROM etl.etl_runs))) x
--## table etl.etl_runs
SELECT CASE (SELECT 1 FROM etl.etl_runs) WHEN 1 THEN 2 END
--## table etl.etl_runs
SELECT sum(x) FILTER (WHERE EXISTS (SELECT 1 FROM etl.etl_runs)) FROM content.film_work
--## table etl.etl_runs
SELECT json_array(SELECT id FROM etl.etl_runs)
--## table etl.etl_runs
SELECT json_arrayagg(id ORDER BY (SELECT 1 FROM etl.etl_runs)) FROM content.film_work
--## table etl.etl_runs
VALUES ((SELECT count(*) FROM etl.etl_runs))
--## table etl.etl_runs
WITH x AS (SELECT * FROM etl.etl_runs) SELECT * FROM x
--## table Content.film_work
SELECT * FROM "Content".film_work
--## table content .film_work
SELECT * FROM "content ".film_work
--## table vitrina.content.film_work
SELECT * FROM vitrina.content.film_work
--## table other.etl.etl_runs
SELECT * FROM other.etl.etl_runs
--## table pg_catalog.pg_class
SELECT * FROM pg_catalog.pg_class
--## table pg_class
SELECT * FROM pg_class
--## table pg_authid
SELECT rolpassword FROM pg_authid
--## table pg_shadow
SELECT * FROM PG_SHADOW
--## table pg_settings
SELECT * FROM pg_settings
--## table pg_stat_activity
SELECT query FROM pg_stat_activity
--## table pg_largeobject
SELECT * FROM pg_largeobject
--## table pg_toast.pg_toast_1255
SELECT * FROM pg_toast.pg_toast_1255
--## table pg_temp.x
SELECT * FROM pg_temp.x
--## table information_schema.tables
SELECT * FROM information_schema.tables
--## table information_schema.columns
SELECT * FROM INFORMATION_SCHEMA.COLUMNS
--## table pg_user_mappings
SELECT umoptions FROM pg_user_mappings
--## table film_work
SELECT * FROM film_work
--## table analytics.film_dim
SELECT * FROM analytics.film_dim
--## table public.secrets
SELECT * FROM public.secrets
--## table pg_class
WITH x AS (SELECT 1 AS a) SELECT * FROM x, pg_class
--## table pg_class
WITH pg_class AS (SELECT * FROM pg_class) SELECT * FROM pg_class
--## table pg_class
WITH a AS (SELECT * FROM pg_class), pg_class AS (SELECT 1) SELECT * FROM a
--## table pg_class
SELECT * FROM (WITH pg_class AS (SELECT 1) SELECT * FROM pg_class) AS x, pg_class
--## table pg_class
(WITH pg_class AS (SELECT 1) SELECT * FROM pg_class) UNION SELECT oid::int FROM pg_class
--## table pg_class
SELECT (WITH pg_class AS (SELECT 1 AS a) SELECT a FROM pg_class) FROM pg_class
--## table pg_catalog.pg_class
WITH pg_class AS (SELECT 1) SELECT * FROM pg_catalog.pg_class
--## table etl.etl_runs
WITH "etl.etl_runs" AS (SELECT 1) SELECT * FROM etl.etl_runs
--## table pg_class
WITH "PG_CLASS" AS (SELECT 1) SELECT * FROM pg_class
--## table PG_CLASS
WITH pg_class AS (SELECT 1) SELECT * FROM "PG_CLASS"
--## table pg_authid
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r, pg_authid) SELECT * FROM r
--## table pg_authid
WITH RECURSIVE a AS (WITH pg_authid AS (SELECT 1) SELECT 1), b AS (SELECT * FROM pg_authid) SELECT * FROM b
--## table f
SELECT * FROM content.film_work AS f, (SELECT * FROM f) AS g
--## function system_rows
SELECT * FROM content.film_work TABLESAMPLE system_rows (10)
--## function public
SELECT * FROM content.film_work TABLESAMPLE public.evil (10)
--## collation etl.c
SELECT title COLLATE etl.c FROM content.film_work
--## placeholder
SELECT * FROM content.film_work WHERE id = $1
--## placeholder
SELECT * FROM content.film_work WHERE id = ?
--## placeholder
SELECT * FROM content.film_work WHERE id = %s
--## placeholder
SELECT * FROM content.film_work WHERE id = %(id)s
--## placeholder
SELECT * FROM content.film_work WHERE id = :id
--## placeholder
SELECT * FROM content.film_work WHERE id > :SINCE
--## placeholder
SELECT (ARRAY[1, 2])[:since]
--## placeholder
SELECT (ARRAY[1, 2])[1:since] FROM content.film_work
--## function pg_sleep
SELECT (ARRAY[1, 2])[1:pg_sleep(1)]
--## syntax at :
SELECT ARRAY[1, :x]
--## placeholder
SELECT (ARRAY[1])[1], :x
--## placeholder
SELECT 1 WHERE true AND:since IS NULL
--## syntax at .
SELECT :since.pg_sleep
--## syntax at [
SELECT :since[1]
--## syntax at :
SELECT :'since'
--## syntax at :
SELECT * FROM :"since"
--## syntax at since
SELECT * FROM :since
--## character
\copy content.film_work TO '/tmp/x'
--## character
SELECT 1 \gexec
--## character
SELECT 1 \; SELECT 2
--## character
SELECT pg_sleep(1)
--## character
SELECT‘x’
--## character
SELECT {fn now()}
--## identifier
SELECT 1 AS aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
--## column
SELECT a.b.c.d FROM content.film_work
--## syntax at DEFAULT
VALUES (DEFAULT)
--## function treat
SELECT treat(1 AS int)
--## function merge_action
SELECT merge_action()
--## syntax at COLLATION
SELECT collation FOR ('x')
--## syntax at *
SELECT * * FROM content.film_work
--## operator *
SELECT (*) FROM content.film_work
--## syntax at OF
SELECT * FROM content.film_work WHERE CURRENT OF c
--## syntax at CONTENT
SELECT * FROM LATERAL content.film_work
--## syntax at FROM
SELECT FROM FROM content.film_work
--## syntax at DOCUMENT
SELECT '<a/>' IS DOCUMENT
--## syntax at CREATE
WITH x AS (CREATE TABLE content.y (a int)) SELECT 1
--## syntax at SELECT
SELECT * FROM (EXPLAIN SELECT 1) x
--## syntax at SHOW
WITH x AS (SHOW ALL) SELECT * FROM x
--## function _regclass
SELECT ('{etl.etl_api_tokens}')._regclass
--## function _regclass
SELECT x._regclass FROM lower('{etl.etl_api_tokens}') AS x
--## function _aclitem
SELECT ('{postgres=r/postgres}')._aclitem
--## type _regclass
SELECT '{etl.etl_api_tokens}'::_regclass
--## function pg_partition_root
SELECT ('etl.etl_runs').pg_partition_root
--## function regclassin
SELECT ('etl.etl_runs').regclassin
--## function xml
SELECT ('<a/>'::text).xml
--## function regrole
SELECT (10::oid).regrole
--## function content.delete_everything
VALUES (content.delete_everything())
--## function content.delete_everything
SELECT id FROM content.film_work LIMIT content.delete_everything()
--## function content.delete_everything
SELECT id FROM content.film_work OFFSET content.delete_everything()
--## function content.delete_everything
SELECT sum(rating) OVER (ORDER BY id ROWS content.delete_everything() PRECEDING) FROM ugc.ratings
--## function query_to_xml
SELECT query_to_xml('SELECT content.delete_everything()', true, true, '')
--## function pg_typeof
SELECT coalesce(pg_typeof(id), 'etl.etl_api_tokens') FROM content.film_work
--## function pg_typeof
SELECT 1 FROM content.film_work WHERE pg_typeof(id) = 'etl.etl_api_tokens'
--## function pg_typeof
SELECT pg_typeof(1)::regtype::oid
--## adjoining strings
SELECT 'a' 'b'
--## adjoining strings
SELECT $$a$$
'b'
--## adjoining strings
SELECT 'a' /* a comment */ 'b'
--## function pg_sleep
SELECT 'a\', pg_sleep(10), '\'
--## function xmlpi
SELECT xmlpi(name php, 'system()')
--## type hstore
SELECT 'a=>1'::hstore
--## operator %>
SELECT title %> 'star' FROM content.film_work
--## OPERATOR()
SELECT title OPERATOR(public.%) 'star' FROM content.film_work
