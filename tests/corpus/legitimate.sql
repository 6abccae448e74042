--## the film mart of the demo
SELECT
    f.id AS film_id,
    f.title,
    f.rating,
    f.creation_date,
    array_agg(DISTINCT g.name ORDER BY g.name) FILTER (WHERE g.name IS NOT NULL) AS genres,
    max(f.updated_at) AS updated_at
FROM content.film_work f
LEFT JOIN content.genre_film_work fg ON fg.film_work_id = f.id
LEFT JOIN content.genre g ON g.id = fg.genre_id
GROUP BY f.id
--## the rating mart of the demo
SELECT film_id, avg(rating)::numeric(4, 2) AS avg_rating, count(*) AS ratings, max(rated_at) AS last_rated_at
FROM ugc.ratings
GROUP BY film_id;
--## a constant
SELECT 1
--## a closing semicolon and comments at the ends
-- films
/* all of /* them */ */
SELECT id FROM content.film_work; -- that is all
--## a bare star
SELECT * FROM content.film_work
--## a load stamp
SELECT f.*, now() AS loaded_at FROM content.film_work AS f
--## the table command
TABLE content.genre
--## values
VALUES (1, 'a'), (2, 'b'), (3, NULL)
--## values in FROM
SELECT v.code, v.label FROM (VALUES ('a', 'first'), ('b', 'second')) AS v (code, label)
--## values in WITH
WITH codes (code, label) AS (VALUES (1, 'one'), (2, 'two')) SELECT label FROM codes WHERE code = 1
--## a range that the runner pushes in
SELECT id, updated_at FROM content.film_work WHERE updated_at >= :since AND updated_at < :until
--## an optional range
SELECT id FROM ugc.ratings WHERE (:since IS NULL OR rated_at >= :since) AND rated_at<:until
--## a cast parameter
SELECT film_id, rated_at::date AS day FROM ugc.ratings WHERE rated_at::date >= :since::date
--## parameter names in strings and comments
SELECT ':since' AS a, /* :nobody */ $$:until$$ AS b -- :since
--## left join with using
SELECT f.title, r.rating FROM content.film_work f LEFT OUTER JOIN ugc.ratings r ON r.film_id = f.id
--## all kinds of joins
SELECT 1 FROM content.genre a INNER JOIN content.genre b USING (id) RIGHT JOIN content.genre c ON c.id = b.id
FULL OUTER JOIN content.genre d ON d.id = c.id CROSS JOIN (SELECT full_name FROM content.person) AS e NATURAL LEFT JOIN (SELECT full_name FROM content.person) AS p
--## using with an alias
SELECT j.id FROM content.genre JOIN content.genre AS g USING (id) AS j
--## joins with late conditions
SELECT f.id FROM content.film_work f JOIN content.genre_film_work fg JOIN content.genre g ON g.id = fg.genre_id ON fg.film_work_id = f.id
--## joins in parentheses
SELECT f.id FROM content.film_work f LEFT JOIN (content.genre_film_work fg JOIN content.genre g ON g.id = fg.genre_id) ON fg.film_work_id = f.id
--## a join with an alias
SELECT j.name FROM (content.genre_film_work fg JOIN content.genre g ON g.id = fg.genre_id) AS j
--## many parentheses
SELECT ((1) + ((2))) * (((3))) AS n, ((SELECT 1)) AS s, ((SELECT 2) + 1) AS t FROM (((SELECT 1) UNION (SELECT 2))) AS u
--## comma joins
SELECT f.title, g.name FROM content.film_work f, content.genre g, content.genre_film_work fg
WHERE fg.film_work_id = f.id AND g.id = fg.genre_id
--## lateral subquery: the last three ratings
SELECT f.id, r.rating, r.rated_at
FROM content.film_work f
CROSS JOIN LATERAL (
    SELECT rating, rated_at FROM ugc.ratings WHERE film_id = f.id ORDER BY rated_at DESC LIMIT 3
) r
--## lateral function
SELECT f.id, tag FROM content.film_work f, unnest(f.tags) AS tag
--## lateral left join of a function
SELECT f.id, t.tag, t.place FROM content.film_work f LEFT JOIN LATERAL unnest(f.tags) WITH ORDINALITY AS t (tag, place) ON true
--## rows from
SELECT * FROM ROWS FROM (generate_series(1, 3), unnest(ARRAY['a', 'b'])) WITH ORDINALITY AS t (n, letter, place)
--## generate_series of days
SELECT d::date AS day, count(r.id) AS ratings
FROM generate_series(timestamptz '2024-06-01', timestamptz '2024-06-30', interval '1 day') AS d
LEFT JOIN ugc.ratings r ON r.rated_at >= d AND r.rated_at < d + interval '1 day'
GROUP BY d
ORDER BY d
--## generate_series with a column name
SELECT s.n FROM generate_series(1, 10, 2) AS s (n) WHERE s.n % 3 = 0
--## union
SELECT id, 'film' AS kind FROM content.film_work UNION ALL SELECT id, 'genre' FROM content.genre
--## set operations in parentheses
(SELECT id FROM content.film_work EXCEPT SELECT film_id FROM ugc.ratings WHERE rating < 3) INTERSECT (SELECT film_id FROM ugc.ratings) ORDER BY 1 LIMIT 5
--## distinct
SELECT DISTINCT type FROM content.film_work
--## distinct on: the latest rating of each film
SELECT DISTINCT ON (film_id) film_id, rating, rated_at FROM ugc.ratings ORDER BY film_id, rated_at DESC, id DESC
--## order, limit, offset
SELECT id FROM content.film_work ORDER BY rating DESC NULLS LAST, title COLLATE "C" ASC LIMIT 10 OFFSET 5
--## fetch first with ties
SELECT id, rating FROM content.film_work ORDER BY rating OFFSET 1 ROWS FETCH FIRST 3 ROWS WITH TIES
--## fetch next only
SELECT id FROM content.film_work ORDER BY id FETCH NEXT ROW ONLY
--## limit all
SELECT id FROM content.film_work LIMIT ALL
--## window: rank within a group
SELECT id, type, rank() OVER (PARTITION BY type ORDER BY rating DESC) AS place, dense_rank() OVER w AS dense
FROM content.film_work WINDOW w AS (PARTITION BY type ORDER BY rating DESC)
--## window: running sum with a frame
SELECT id, sum(rating) OVER (ORDER BY rated_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS running FROM ugc.ratings
--## window: moving average over time
SELECT id, avg(rating) OVER (PARTITION BY film_id ORDER BY rated_at RANGE BETWEEN interval '7 days' PRECEDING AND interval '1 day' FOLLOWING EXCLUDE CURRENT ROW) FROM ugc.ratings
--## window: groups frame
SELECT id, count(*) OVER (ORDER BY rating GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES) FROM ugc.ratings
--## window: built upon another
SELECT id, count(*) OVER (w ROWS 2 PRECEDING), last_value(rating) OVER (w ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) FROM ugc.ratings WINDOW w AS (PARTITION BY film_id ORDER BY id), v AS (w)
--## window: lag and lead
SELECT film_id, rated_at, rated_at - lag(rated_at) OVER (PARTITION BY film_id ORDER BY rated_at) AS gap, lead(rating, 1, 0) OVER (ORDER BY id) FROM ugc.ratings
--## window: ntile, first_value, nth_value, percent_rank, cume_dist
SELECT id, ntile(4) OVER o, first_value(title) OVER o, nth_value(title, 2) OVER o, percent_rank() OVER o, cume_dist() OVER o, row_number() OVER () FROM content.film_work WINDOW o AS (ORDER BY budget)
--## window: filtered aggregate
SELECT id, count(*) FILTER (WHERE rating > 5) OVER (PARTITION BY film_id) FROM ugc.ratings
--## grouping sets
SELECT type, mood, count(*), grouping(type, mood) FROM content.film_work GROUP BY GROUPING SETS ((type, mood), (type), ())
--## rollup and cube
SELECT type, mood, extract(year FROM creation_date) AS year, count(*) FROM content.film_work GROUP BY ROLLUP (type, (mood)), CUBE (extract(year FROM creation_date))
--## group by distinct
SELECT type, mood, count(*) FROM content.film_work GROUP BY DISTINCT ROLLUP (type, mood), ROLLUP (type)
--## having
SELECT film_id, avg(rating) FROM ugc.ratings GROUP BY 1 HAVING count(*) > 2 AND avg(rating) BETWEEN 3 AND 9
--## filter
SELECT count(*) FILTER (WHERE rating >= 8) AS liked, count(*) FILTER (WHERE rating <= 3) AS disliked, count(DISTINCT user_id) FROM ugc.ratings
--## percentiles
SELECT film_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY rating) AS median, percentile_disc(ARRAY[0.25, 0.75]) WITHIN GROUP (ORDER BY rating DESC) AS quartiles, mode() WITHIN GROUP (ORDER BY rating) FROM ugc.ratings GROUP BY film_id
--## hypothetical rank
SELECT rank(5) WITHIN GROUP (ORDER BY rating) FROM ugc.ratings
--## statistics
SELECT stddev_samp(rating), var_pop(rating), corr(rating, id), regr_slope(rating, id), covar_pop(rating, id), bool_and(rating > 0), bit_or(rating), every(true) FROM ugc.ratings
--## histogram
SELECT width_bucket(rating, 0, 10, 5) AS bucket, count(*) FROM ugc.ratings GROUP BY bucket ORDER BY bucket
--## string_agg with order
SELECT film_id, string_agg(rating::text, ', ' ORDER BY rated_at DESC) FROM ugc.ratings GROUP BY film_id
--## recursive tree of genres
WITH RECURSIVE tree AS (
    SELECT id, name, parent_id, 1 AS depth, ARRAY[name] AS path FROM content.genre WHERE parent_id IS NULL
    UNION ALL
    SELECT g.id, g.name, g.parent_id, t.depth + 1, t.path || g.name FROM content.genre g JOIN tree t ON t.id = g.parent_id
)
SELECT id, name, depth, array_to_string(path, ' > ') AS path FROM tree
--## recursive with search and cycle
WITH RECURSIVE tree (id, parent_id) AS (
    SELECT id, parent_id FROM content.genre WHERE parent_id IS NULL
    UNION
    SELECT g.id, g.parent_id FROM content.genre g JOIN tree t ON t.id = g.parent_id
) SEARCH BREADTH FIRST BY id SET seq CYCLE id SET looped TO true DEFAULT false USING trail
SELECT id, looped FROM tree ORDER BY seq
--## recursive that counts
WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 10) SELECT sum(n) FROM t
--## recursive with a forward name
WITH RECURSIVE a AS (SELECT * FROM b), b AS (SELECT 1 AS x) SELECT x FROM a
--## several WITH queries that build on each other
WITH rated AS MATERIALIZED (SELECT film_id, avg(rating) AS mean FROM ugc.ratings GROUP BY film_id),
     best AS NOT MATERIALIZED (SELECT film_id FROM rated WHERE mean > 5)
SELECT f.title FROM content.film_work f JOIN best b ON b.film_id = f.id
--## WITH inside a subquery
SELECT * FROM (WITH x AS (SELECT id FROM content.genre) SELECT count(*) AS n FROM x) AS q
--## WITH that shadows and is seen inside
WITH x AS (SELECT 1 AS a) SELECT (SELECT a FROM x), (WITH x AS (SELECT 2 AS a) SELECT a FROM x), EXISTS (SELECT FROM x)
--## WITH named like a catalog table
WITH pg_class AS (SELECT id FROM content.genre) SELECT count(*) FROM pg_class
--## exists and not exists
SELECT f.id FROM content.film_work f WHERE EXISTS (SELECT 1 FROM ugc.ratings r WHERE r.film_id = f.id) AND NOT EXISTS (SELECT FROM ugc.views v WHERE v.film_id = f.id AND seconds > 100000)
--## in, any, all
SELECT id FROM content.film_work WHERE type IN ('movie', 'series') AND id = ANY (SELECT film_id FROM ugc.ratings) AND rating >= ALL (ARRAY[0, 0.5]) AND id NOT IN (SELECT film_id FROM ugc.views WHERE seconds < 0) AND title <> ALL ('{a,b}')
--## row comparison
SELECT id FROM ugc.ratings WHERE (rated_at, id) > (timestamptz '2024-06-01', 5) AND (1, 2) IN ((1, 2), (3, 4)) AND ROW(1, NULL) IS DISTINCT FROM ROW(1, 2)
--## scalar subqueries
SELECT f.title, (SELECT max(rating) FROM ugc.ratings r WHERE r.film_id = f.id) AS best, f.rating - (SELECT avg(rating) FROM content.film_work) AS above FROM content.film_work f
--## case
SELECT CASE type WHEN 'movie' THEN 1 ELSE 0 END AS is_movie, CASE WHEN rating > 8 THEN 'great' WHEN rating IS NULL THEN NULL ELSE 'fine' END AS class FROM content.film_work
--## coalesce and friends
SELECT coalesce(description, '', NULL), nullif(rating, 0), greatest(1, rating), least(rating, 10), num_nulls(description, rating) FROM content.film_work
--## casts of all kinds
SELECT '1'::int, CAST('1.50' AS numeric(10, 2)), date '2024-01-01', interval '1' day, interval '1-2' YEAR TO MONTH, interval(0) '1.5 s', timestamp with time zone '2024-01-01 00:00+03', time '10:00', '1'::double precision, 'a'::character varying(5), B'101'::bit(3), X'1F', '{1,2}'::int[], '{{1,2},{3,4}}'::integer[][], 5::smallint::bigint::float4::text, '12:00'::time(3) with time zone, '1 day'::interval day to second(3), 'x'::"char", bool 'true', double precision '1.5', numeric '1.5', int4 '1', pg_catalog.int8 '5', character varying 'abc', 'a'::bpchar
--## type functions
SELECT date(rated_at), text(1.5), float8(1), int4(2.5), numeric '1.0'::text, timestamptz(rated_at::timestamp) FROM ugc.ratings
--## enums, domains and row types of the data
SELECT 'sad'::content.mood < mood, content.mood 'happy', 5.5::content.score, ROW('a', 'b')::content.address, enum_range(NULL::content.mood) FROM content.film_work
--## fields of a composite
SELECT (studio).city, (f.studio).street, (f).title, (f.studio).* FROM content.film_work AS f
--## a whole row
SELECT f, row_to_json(f), to_jsonb(f) - 'description' FROM content.film_work AS f
--## names that look like functions of the server
SELECT f.pg_rating, f.type, f.length FROM content.film_work f
--## quoted names
SELECT o."Key", o."a ""quoted"" column" AS "select", o."группа" FROM content."Odd Name" AS o
--## names in another alphabet
SELECT title AS название, rating AS "Оценка" FROM content.film_work AS фильм WHERE фильм.rating > 1
--## three-part column names
SELECT content.film_work.id, content.genre.* FROM content.film_work, content.genre
--## upper case
SELECT ID, UPPER(TITLE) FROM CONTENT.FILM_WORK WHERE RATING > 3
--## keywords as names
SELECT day, month AS year, value AS "value", action, name FROM (SELECT 1 AS day, 2 AS month, 3 AS value, 4 AS action, 5 AS name) AS data
--## labels without AS
SELECT rating r, count(*) total, max(id) "max id" FROM ugc.ratings GROUP BY rating
--## columns that share a name with special functions
SELECT position, trim, values, "row" FROM (SELECT 1 AS position, 2 AS trim, 3 AS values, 4 AS "row") AS t
--## json operators
SELECT attributes -> 'crew' ->> 'director', attributes #>> '{crew,director}', attributes #> '{awards,0}', attributes @> '{"country": "US"}', attributes ? 'country', attributes ?| ARRAY['a', 'country'], attributes ?& ARRAY['country'], attributes - 'crew', attributes #- '{crew,director}', attributes || '{"x": 1}' FROM content.film_work
--## json subscripts
SELECT attributes['crew']['director'], (attributes -> 'awards')[0] FROM content.film_work
--## json paths
SELECT jsonb_path_query_first(attributes, '$.awards[*] ? (@ > 3)'), attributes @? '$.awards[*] ? (@ > 5)', attributes @@ '$.awards[0] > 2' FROM content.film_work
--## json each
SELECT f.id, e.key, e.value FROM content.film_work f CROSS JOIN LATERAL jsonb_each(f.attributes) AS e
--## json each text in the list
SELECT id, jsonb_object_keys(attributes), (jsonb_each_text(attributes)).key FROM content.film_work
--## json array elements
SELECT f.id, award.value::int FROM content.film_work f, jsonb_array_elements(f.attributes -> 'awards') AS award
--## json records
SELECT x.a, x.b FROM jsonb_to_recordset('[{"a": 1, "b": "x"}, {"a": 2}]') AS x (a int, b text)
--## json record with AS only
SELECT * FROM json_to_record('{"a": 1}') AS (a int)
--## json into a row type
SELECT p.full_name FROM jsonb_populate_record(NULL::content.person, '{"full_name": "Leia"}') AS p
--## building json
SELECT jsonb_build_object('id', id, 'genres', jsonb_agg(DISTINCT tag)) FROM content.film_work, unnest(tags) AS tag GROUP BY id
--## json aggregates
SELECT jsonb_object_agg(name, id), json_agg(name ORDER BY name), array_to_json(array_agg(name)), json_object_agg(name, 1) FROM content.genre
--## nested documents for a search index
SELECT f.id, f.title, (SELECT coalesce(jsonb_agg(jsonb_build_object('id', p.id, 'name', p.full_name) ORDER BY p.full_name), '[]') FROM content.person_film_work pf JOIN content.person p ON p.id = pf.person_id WHERE pf.film_work_id = f.id AND pf.role = 'actor') AS actors FROM content.film_work f
--## is json
-- needs 16
SELECT title IS JSON, '{}' IS JSON OBJECT WITH UNIQUE KEYS, title IS NOT JSON ARRAY FROM content.film_work
--## sql/json constructors
-- needs 16
SELECT JSON_OBJECT('a' VALUE 1, 'b' : title ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb), JSON_ARRAY(1, 2, NULL NULL ON NULL), JSON_ARRAYAGG(title ORDER BY title RETURNING jsonb), JSON_OBJECTAGG(title VALUE rating) FROM content.film_work GROUP BY title
--## sql/json constructor from a query
-- needs 16
SELECT JSON_ARRAY(SELECT name FROM content.genre ORDER BY name)
--## sql/json queries
-- needs 17
SELECT JSON_VALUE(attributes, '$.country' RETURNING text DEFAULT 'none' ON EMPTY NULL ON ERROR), JSON_QUERY(attributes, '$.awards' WITH CONDITIONAL WRAPPER KEEP QUOTES), JSON_EXISTS(attributes, '$.awards[*] ? (@ > $x)' PASSING 3 AS x), JSON_SCALAR(1), JSON_SERIALIZE(attributes RETURNING text), JSON('{}') FROM content.film_work
--## json_table
-- needs 17
SELECT f.id, t.place, t.award, t.director FROM content.film_work f, JSON_TABLE(f.attributes, '$' AS root PASSING 1 AS x COLUMNS (place FOR ORDINALITY, director text PATH '$.crew.director' DEFAULT 'none' ON EMPTY, has boolean EXISTS PATH '$.crew', NESTED PATH '$.awards[*]' COLUMNS (award int PATH '$'))) AS t
--## arrays
SELECT tags[1], scores[2:3], scores[ : 2], scores[2 : ], scores[1:cardinality(scores) - 1], scores[n:n + 1], array_length(tags, 1), cardinality(tags), tags || 'new'::text, tags @> ARRAY['space'], tags && '{a,b}', array_position(tags, 'space'), array_remove(tags, 'space'), 'space' = ANY (tags), (ARRAY[[1, 2], [3, 4]])[2][1], ARRAY[]::int[], array_fill(0, ARRAY[3]), scores[array_upper(scores, 1)] FROM content.film_work, (SELECT 1 AS n) AS one
--## array of a subquery
SELECT id, ARRAY(SELECT rating FROM ugc.ratings r WHERE r.film_id = f.id ORDER BY 1) AS ratings FROM content.film_work f
--## unnest of several arrays
SELECT * FROM unnest(ARRAY[1, 2], ARRAY['a', 'b', 'c']) AS t (n, letter)
--## ranges
SELECT licence @> date '2020-06-01', lower(licence), upper_inf(licence), licence && daterange('2020-01-01', '2020-12-31', '[]'), licence * daterange('2020-01-01', NULL), range_agg(licence) OVER (), seasons @> 2, licence -|- daterange('2022-01-01', NULL), licence << daterange('2030-01-01', NULL) FROM content.film_work
--## overlaps
SELECT (created_at, interval '1 day') OVERLAPS (timestamptz '2024-01-01', timestamptz '2030-01-01') FROM content.film_work
--## full-text search
SELECT id, ts_rank(search, query) AS rank, ts_headline('english', title, query) FROM content.film_work, websearch_to_tsquery('english', 'star -trek') AS query WHERE search @@ query ORDER BY rank DESC
--## full-text operators
SELECT to_tsvector('simple', title) @@ to_tsquery('simple', 'star & !trek'), setweight(search, 'A') || to_tsvector('x'), plainto_tsquery('a b') && phraseto_tsquery('c d'), !! 'a'::tsquery FROM content.film_work
--## dates
SELECT date_trunc('month', rated_at), date_bin('15 minutes', rated_at, timestamptz '2024-01-01'), extract(epoch FROM rated_at), date_part('dow', rated_at), to_char(rated_at, 'YYYY-MM-DD HH24:MI'), age(rated_at), rated_at AT TIME ZONE 'UTC', rated_at AT TIME ZONE 'Europe/Moscow' AS msk, rated_at + interval '1 month' - interval '1 day', make_date(2024, 1, 31), make_interval(days => 3, hours := 2), to_timestamp(0), justify_hours(interval '30 hours'), isfinite(rated_at), extract('isodow' FROM rated_at) FROM ugc.ratings
--## clocks
SELECT now(), current_date, current_time(0), current_timestamp(3), localtime, localtimestamp, clock_timestamp(), statement_timestamp(), transaction_timestamp(), timeofday()
--## strings
SELECT substring(title FROM 1 FOR 3), substring(title, 2), substring(title FROM 'S.*'), substring(title SIMILAR 'S#"%#"' ESCAPE '#'), position('a' IN title), overlay(title PLACING 'xx' FROM 2 FOR 1), trim(BOTH ' ' FROM title), trim(LEADING FROM title), trim(title), ltrim(title), rtrim(title, 'x'), lpad(title, 5, '*'), split_part(title, ' ', 1), initcap(title), replace(title, 'a', 'b'), translate(title, 'ab', 'cd'), left(title, 3), right(title, 3), reverse(title), repeat('ab', 2), strpos(title, 'a'), starts_with(title, 'S'), concat_ws('-', title, 1), format('%s has %L and %I', title, 'x', 'y'), md5(title), encode(sha256(convert_to(title, 'UTF8')), 'hex'), chr(65), ascii('A'), to_hex(255), char_length(title), octet_length(title), normalize(title, NFC), title IS NFC NORMALIZED, title ^@ 'Star', string_to_array(title, ' ') FROM content.film_work
--## patterns
SELECT id FROM content.film_work WHERE title LIKE 'St_r%' AND title NOT ILIKE '%x!%' ESCAPE '!' AND title SIMILAR TO '(Star|Moon)%' AND title ~ '^S\w+' AND title !~* 'zzz$' AND title LIKE ANY (ARRAY['S%', 'T%']) AND title NOT SIMILAR TO 'q' AND title ~~ 'S%'
--## regular expressions
SELECT regexp_replace(title, '(\d+)', '<\1>', 'g'), (regexp_match(title, '(\w+) (\w+)'))[2], regexp_split_to_array(title, '\s+'), regexp_count(title, 'a'), word FROM content.film_work, regexp_split_to_table(title, ' ') AS word
--## string spellings
SELECT 'it''s', E'tab\there \'quoted\' \\', $$dollar 'quoted'$$, $tag$with $$ inside$tag$, 'C:\dir\file', N'national', '100%', '%s', '?', '--', '/* */', ';'
--## numbers
SELECT 1, 1.5, .5, 5., 1e10, 1.5E-3, -1, +1, - - 1, 7 % 3, 7 / 2.0, 2 ^ 3, |/ 4, ||/ 27, @ -5, 5 & 3, 5 | 3, 5 # 3, ~ 5, 1 << 2, 8 >> 1, mod(7, 3), div(7, 2), round(1.234, 2), trunc(1.9), ceil(1.1), floor(1.9), power(2, 3), sqrt(4), ln(1), log(2, 8), exp(0), abs(-1), sign(-2), gcd(12, 8), factorial(5), pi(), degrees(1), sin(0), atan2(1, 1)
--## number spellings of later versions
-- needs 16
SELECT 0x1F, 0o17, 0b101, 1_000_000
--## operators without spaces
SELECT 1+2-3*4/5, 2*-1, 1<2, 2>=1, 1!=2, 'a'||'b', 5-(-3), NOT(true)AND(false)
--## comparison spellings
SELECT rating IS NULL, rating IS NOT NULL, rating ISNULL, rating NOTNULL, rating IS DISTINCT FROM 5, rating IS NOT DISTINCT FROM 5, (rating > 5) IS TRUE, (rating > 5) IS NOT FALSE, (rating > 5) IS UNKNOWN, rating BETWEEN 1 AND 5, rating NOT BETWEEN SYMMETRIC 5 AND 1 FROM content.film_work
--## network addresses
SELECT host(address), masklen(address), address << inet '10.0.0.0/8', network(set_masklen(address, 24)), inet_same_family(address, '::1') FROM ugc.ratings
--## identifiers made by the server
SELECT gen_random_uuid() AS id, random() AS dice, md5(random()::text) AS salt FROM generate_series(1, 3)
--## geometry
SELECT point(1, 2) <-> point(4, 6), box '(0,0),(1,1)' @> point '(0.5,0.5)', circle(point(0, 0), 5)
--## samples
SELECT count(*) FROM ugc.ratings AS r TABLESAMPLE bernoulli (50) REPEATABLE (42)
--## only, with a star
SELECT count(*) FROM ONLY content.genre, content.person *
--## a partitioned table
SELECT date_trunc('month', at) AS month, sum(seconds) / 3600.0 AS hours FROM ugc.views WHERE at >= '2024-01-01' GROUP BY 1
--## a column named at
SELECT v.at AT TIME ZONE 'UTC' AS at, v.at at_again FROM ugc.views v
--## a view
SELECT genre, count(*) FROM content.films_and_genres GROUP BY genre
--## cohort retention
WITH first_seen AS (SELECT user_id, date_trunc('week', min(rated_at)) AS cohort FROM ugc.ratings GROUP BY user_id),
     activity AS (SELECT DISTINCT r.user_id, date_trunc('week', r.rated_at) AS week FROM ugc.ratings r)
SELECT c.cohort, (extract(epoch FROM a.week - c.cohort) / 604800)::int AS week_no, count(*) AS users, round(100.0 * count(*) / sum(count(*)) OVER (PARTITION BY c.cohort), 1) AS share
FROM first_seen c JOIN activity a USING (user_id) GROUP BY 1, 2 ORDER BY 1, 2
--## sessions by gaps
SELECT user_id, session, min(at) AS started_at, max(at) AS ended_at, count(*) AS views
FROM (SELECT user_id, at, sum(is_new) OVER (PARTITION BY user_id ORDER BY at) AS session
      FROM (SELECT user_id, at, CASE WHEN at - lag(at) OVER (PARTITION BY user_id ORDER BY at) < interval '10 hours' THEN 0 ELSE 1 END AS is_new FROM ugc.views) AS marked) AS numbered
GROUP BY user_id, session
--## pivot
SELECT film_id, sum(CASE WHEN rating = 1 THEN 1 ELSE 0 END) AS one, sum((rating = 10)::int) AS ten, array_agg(rating ORDER BY rating) FILTER (WHERE rating > 5) AS good FROM ugc.ratings GROUP BY film_id
--## weighted rating
SELECT f.id, (count(r.id) * avg(r.rating) + 10 * m.mean) / (count(r.id) + 10) AS weighted FROM content.film_work f LEFT JOIN ugc.ratings r ON r.film_id = f.id CROSS JOIN (SELECT avg(rating) AS mean FROM ugc.ratings) AS m GROUP BY f.id, m.mean
--## deduplication by row number
SELECT id, title FROM (SELECT f.*, row_number() OVER (PARTITION BY title ORDER BY updated_at DESC, ctid) AS place FROM content.film_work f) AS q WHERE place = 1
--## correlated exists in CASE
SELECT id, CASE WHEN EXISTS (SELECT FROM ugc.ratings r WHERE r.film_id = f.id AND rating = 10) THEN 'loved' END AS label FROM content.film_work f
--## functions of pg_catalog by their full name
SELECT pg_catalog.lower(title), pg_catalog.count(*) OVER (), "pg_catalog"."upper"(title) FROM content.film_work
--## aggregates over distinct expressions
SELECT count(DISTINCT (user_id, film_id)), sum(DISTINCT rating), array_agg(DISTINCT rating ORDER BY rating DESC) FROM ugc.ratings
--## variadic
SELECT concat(VARIADIC tags), jsonb_extract_path_text(attributes, VARIADIC ARRAY['crew', 'director']) FROM content.film_work
--## a select without columns in exists, in a set operation
SELECT EXISTS (SELECT FROM content.genre WHERE false UNION ALL SELECT FROM content.person)
--## windows of lines and white space
select	f.id
	, f.title -- the title
from
	content . film_work f
where f . rating > 1 /* all */ and true
--## a long list
SELECT id FROM ugc.ratings WHERE rating IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20) OR id IN (SELECT 1)
--## nested subqueries
SELECT * FROM (SELECT * FROM (SELECT * FROM (SELECT id FROM content.genre) a) b) c WHERE id IN (SELECT id FROM content.genre WHERE id IN (SELECT genre_id FROM content.genre_film_work))
--## columns named like types and keywords
SELECT date, time, timestamp, interval, text, name, type, year, t.left, t.user, t.order, t.from
FROM (SELECT 1 AS date, 2 AS time, 3 AS timestamp, 4 AS interval, 5 AS text, 6 AS name, 7 AS type, 8 AS year, 9 AS left, 10 AS user, 11 AS order, 12 AS from) AS t
WHERE date > 0 AND time BETWEEN 1 AND 5 AND timestamp IN (3) AND interval IS NOT NULL ORDER BY date DESC, text
--## table aliases named like keywords
SELECT day.id, filter.id, over.id FROM content.genre day, content.genre filter, content.genre AS over LIMIT 1
--## casts behind CASE and subqueries
SELECT CASE WHEN true THEN '1' END::int + (SELECT '2')::int + (ARRAY[3])[1]::int AS n
--## values in a lateral join
SELECT f.id, v.kind, v.value FROM content.film_work f CROSS JOIN LATERAL (VALUES ('rating', f.rating::numeric), ('budget', f.budget)) AS v (kind, value)
--## optimizer hints are comments
SELECT /*+ SeqScan(f) */ f.id FROM content.film_work f
--## grouping sets within grouping sets
SELECT type, mood, count(*) FROM content.film_work GROUP BY GROUPING SETS (ROLLUP (type, mood), (), CUBE ((type, mood)))
--## aggregate filter behind within group
SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY rating) FILTER (WHERE rating > 1) FROM ugc.ratings
--## Russian text search
SELECT to_tsvector('russian', 'звёздные войны') @@ plainto_tsquery('russian', 'война'), ts_rank_cd('{0.1, 0.2, 0.4, 1.0}', search, 'star'::tsquery) FROM content.film_work
