--## strings on adjoining lines are one
SELECT 'a long text'
       ' in two parts' AS text
--## strings with a comment between them
SELECT 'a' -- a comment
'b' AS ab
--## an escape string that goes on
SELECT E'one\n'
  'two\n' AS lines
--## a trailing backslash
SELECT 'C:\films\' || title AS path FROM content.film_work
--## backslashes in LIKE
SELECT title FROM content.film_work WHERE title LIKE '100\%' OR file_path LIKE '%\'
--## unicode escapes
SELECT U&'\0441\043B\043E\043D' AS word, U&'d!0061t!+000061' UESCAPE '!' AS data
--## a text search configuration by cast
SELECT to_tsvector('russian'::regconfig, title) AS words FROM content.film_work
--## text search with a configuration in a column
SELECT ts_headline('english'::regconfig, description, to_tsquery('english', 'time')) AS head FROM content.film_work
--## the type of a value
SELECT DISTINCT pg_typeof(rating)::text AS type FROM ugc.ratings
--## the type of a value by CAST
SELECT CAST(pg_typeof(attributes -> 'country') AS text) AS type FROM content.film_work LIMIT 1
--## xml of a group
-- needs libxml
SELECT xmlagg(xmlelement(name film, title) ORDER BY title)::text AS films FROM content.film_work
--## xml with attributes
-- needs libxml
SELECT xmlelement(name film, xmlattributes(id AS id, type), xmlforest(title, rating AS score))::text AS film FROM content.film_work
--## xpath over a text
-- needs libxml
SELECT (xpath('/a/b/text()', '<a><b>1</b></a>'::xml))[1]::text AS b
--## xml parsed, tested, written
-- needs libxml
SELECT xmlserialize(content xmlparse(document '<a/>') AS text) AS a, xmlexists('/a' PASSING BY VALUE ('<a/>'::xml)) AS has,
       xpath_exists('/a', '<a/>'::xml) AS same, xml_is_well_formed('<a>') AS fine
--## transliteration by many replacements
SELECT replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(lower(title), 'а', 'a'), 'б', 'b'), 'в', 'v'), 'г', 'g'), 'д', 'd'), 'е', 'e'), 'ё', 'e'), 'ж', 'zh'), 'з', 'z'), 'и', 'i'), 'й', 'y'), 'к', 'k'), 'л', 'l'), 'м', 'm'), 'н', 'n'), 'о', 'o'), 'п', 'p'), 'р', 'r'), 'с', 's'), 'т', 't'), 'у', 'u'), 'ф', 'f'), 'х', 'h'), 'ц', 'c'), 'ч', 'ch'), 'ш', 'sh'), 'щ', 'sch'), 'ъ', ''), 'ы', 'y'), 'ь', ''), 'э', 'e'), 'ю', 'yu'), 'я', 'ya'), ' ', '-') AS slug FROM content.film_work
--## transliteration by translate
SELECT translate(lower(title), 'абвгде', 'abvgde') AS slug FROM content.film_work
--## daily active users
SELECT date_trunc('day', at) AS day, count(DISTINCT user_id) AS users FROM ugc.views GROUP BY 1 ORDER BY 1
--## weekly and monthly active users side by side
SELECT w.week, w.users AS weekly, m.users AS monthly
FROM (SELECT date_trunc('week', at) AS week, count(DISTINCT user_id) AS users FROM ugc.views GROUP BY 1) w
JOIN (SELECT date_trunc('month', at) AS month, count(DISTINCT user_id) AS users FROM ugc.views GROUP BY 1) m
  ON m.month = date_trunc('month', w.week)
--## stickiness
WITH d AS (SELECT at::date AS day, count(DISTINCT user_id) AS dau FROM ugc.views GROUP BY 1),
     m AS (SELECT date_trunc('month', at)::date AS month, count(DISTINCT user_id) AS mau FROM ugc.views GROUP BY 1)
SELECT d.day, round(100.0 * d.dau / nullif(m.mau, 0), 1) AS stickiness FROM d JOIN m ON m.month = date_trunc('month', d.day)::date
--## new and returning users
WITH firsts AS (SELECT user_id, min(at)::date AS first_day FROM ugc.views GROUP BY user_id)
SELECT v.at::date AS day, count(*) FILTER (WHERE v.at::date = f.first_day) AS new, count(*) FILTER (WHERE v.at::date > f.first_day) AS returning_users
FROM ugc.views v JOIN firsts f USING (user_id) GROUP BY 1
--## days without data are there too
SELECT d::date AS day, coalesce(sum(v.seconds), 0) AS seconds
FROM generate_series(timestamptz '2024-01-01', timestamptz '2024-01-31', interval '1 day') AS d
LEFT JOIN ugc.views v ON v.at >= d AND v.at < d + interval '1 day' GROUP BY d
--## funnel
SELECT count(DISTINCT v.user_id) AS watched, count(DISTINCT r.user_id) AS rated, count(DISTINCT r.user_id) FILTER (WHERE r.review IS NOT NULL) AS reviewed
FROM ugc.views v LEFT JOIN ugc.ratings r ON r.user_id = v.user_id AND r.film_id = v.film_id
--## conversion within a week
SELECT v.film_id, count(*) AS views, count(r.id) AS ratings, count(r.id)::numeric / nullif(count(*), 0) AS conversion
FROM ugc.views v LEFT JOIN ugc.ratings r ON r.user_id = v.user_id AND r.film_id = v.film_id AND r.rated_at BETWEEN v.at AND v.at + interval '7 days'
GROUP BY v.film_id
--## top three films of each genre
SELECT genre, title, place FROM (
  SELECT g.name AS genre, f.title, row_number() OVER (PARTITION BY g.id ORDER BY f.rating DESC NULLS LAST, f.title) AS place
  FROM content.film_work f JOIN content.genre_film_work fg ON fg.film_work_id = f.id JOIN content.genre g ON g.id = fg.genre_id
) ranked WHERE place <= 3
--## share of the total
SELECT type, count(*) AS films, round(100.0 * count(*) / sum(count(*)) OVER (), 2) AS percent FROM content.film_work GROUP BY type
--## running share, for a Pareto chart
SELECT film_id, views, sum(views) OVER (ORDER BY views DESC, film_id) / sum(views) OVER () AS running
FROM (SELECT film_id, count(*) AS views FROM ugc.views GROUP BY film_id) v
--## ABC classes
SELECT film_id, CASE WHEN running <= 0.8 THEN 'A' WHEN running <= 0.95 THEN 'B' ELSE 'C' END AS class
FROM (SELECT film_id, sum(sum(seconds)) OVER (ORDER BY sum(seconds) DESC) / sum(sum(seconds)) OVER () AS running FROM ugc.views GROUP BY film_id) x
--## RFM
SELECT user_id, ntile(5) OVER (ORDER BY max(at)) AS r, ntile(5) OVER (ORDER BY count(*)) AS f, ntile(5) OVER (ORDER BY sum(seconds)) AS m
FROM ugc.views GROUP BY user_id
--## quartiles of ratings
SELECT film_id, percentile_cont(ARRAY[0.25, 0.5, 0.75]) WITHIN GROUP (ORDER BY rating) AS quartiles FROM ugc.ratings GROUP BY film_id
--## median and mode
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY seconds) AS median, mode() WITHIN GROUP (ORDER BY seconds) AS usual FROM ugc.views
--## outliers by standard deviation
SELECT v.* FROM ugc.views v CROSS JOIN (SELECT avg(seconds) AS mean, stddev_samp(seconds) AS deviation FROM ugc.views) s
WHERE abs(v.seconds - s.mean) > 3 * s.deviation
--## outliers by interquartile range
WITH q AS (SELECT percentile_cont(0.25) WITHIN GROUP (ORDER BY seconds) AS q1, percentile_cont(0.75) WITHIN GROUP (ORDER BY seconds) AS q3 FROM ugc.views)
SELECT v.film_id, v.seconds FROM ugc.views v, q WHERE v.seconds NOT BETWEEN q.q1 - 1.5 * (q.q3 - q.q1) AND q.q3 + 1.5 * (q.q3 - q.q1)
--## z-scores
SELECT id, (rating - avg(rating) OVER w) / nullif(stddev_pop(rating) OVER w, 0) AS z FROM ugc.ratings WINDOW w AS (PARTITION BY film_id)
--## correlation of budget and rating
SELECT corr(budget, rating::numeric) AS r, regr_slope(rating::float8, budget::float8) AS slope, regr_r2(rating::float8, budget::float8) AS r2 FROM content.film_work
--## histogram of ratings
SELECT width_bucket(rating, 0, 10, 5) AS bucket, count(*) AS films, min(rating) AS low, max(rating) AS high FROM content.film_work WHERE rating IS NOT NULL GROUP BY 1
--## moving average of seven days
SELECT day, avg(views) OVER (ORDER BY day ROWS BETWEEN 6 PRECEDING AND CURRENT ROW) AS smoothed FROM (SELECT at::date AS day, count(*) AS views FROM ugc.views GROUP BY 1) d
--## change against the day before
SELECT day, views, views - lag(views) OVER (ORDER BY day) AS change, round(100.0 * (views / nullif(lag(views) OVER (ORDER BY day), 0)::numeric - 1), 1) AS percent
FROM (SELECT at::date AS day, count(*) AS views FROM ugc.views GROUP BY 1) d
--## change against the year before
SELECT a.month, a.n, b.n AS year_before FROM (SELECT date_trunc('month', at) AS month, count(*) AS n FROM ugc.views GROUP BY 1) a
LEFT JOIN (SELECT date_trunc('month', at) + interval '1 year' AS month, count(*) AS n FROM ugc.views GROUP BY 1) b USING (month)
--## cumulative users
SELECT day, sum(count(*)) OVER (ORDER BY day) AS users FROM (SELECT user_id, min(at)::date AS day FROM ugc.views GROUP BY user_id) f GROUP BY day
--## retention by week
WITH first_week AS (SELECT user_id, date_trunc('week', min(at)) AS week FROM ugc.views GROUP BY 1)
SELECT f.week, (extract(epoch FROM date_trunc('week', v.at) - f.week) / 604800)::int AS number, count(DISTINCT v.user_id) AS users
FROM first_week f JOIN ugc.views v USING (user_id) GROUP BY 1, 2
--## churned users
SELECT user_id, max(at) AS last_seen FROM ugc.views GROUP BY user_id HAVING max(at) < now() - interval '30 days'
--## sessions with a window
SELECT user_id, session, min(at) AS began, max(at) AS ended, sum(seconds) AS seconds FROM (
  SELECT *, sum(is_new) OVER (PARTITION BY user_id ORDER BY at) AS session FROM (
    SELECT *, CASE WHEN at - lag(at) OVER (PARTITION BY user_id ORDER BY at) < interval '30 minutes' THEN 0 ELSE 1 END AS is_new FROM ugc.views) a
) b GROUP BY user_id, session
--## islands of consecutive days
SELECT user_id, min(day) AS first_day, max(day) AS last_day, count(*) AS days FROM (
  SELECT user_id, day, day - (row_number() OVER (PARTITION BY user_id ORDER BY day))::int AS island
  FROM (SELECT DISTINCT user_id, at::date AS day FROM ugc.views) d) i GROUP BY user_id, island
--## the longest streak
SELECT user_id, max(days) AS streak FROM (
  SELECT user_id, count(*) AS days FROM (SELECT user_id, day - dense_rank() OVER (PARTITION BY user_id ORDER BY day)::int AS island
  FROM (SELECT DISTINCT user_id, at::date AS day FROM ugc.views) d) i GROUP BY user_id, island) s GROUP BY user_id
--## hour and weekday heat map
SELECT extract(isodow FROM at)::int AS weekday, extract(hour FROM at AT TIME ZONE 'Europe/Moscow')::int AS hour, count(*) AS views FROM ugc.views GROUP BY 1, 2
--## quarter names
SELECT to_char(rated_at, 'YYYY"-Q"Q') AS quarter, count(*) AS n FROM ugc.ratings GROUP BY 1
--## fiscal year from April
SELECT extract(year FROM rated_at - interval '3 months')::int AS fiscal_year, avg(rating)::numeric(4, 2) AS mean FROM ugc.ratings GROUP BY 1
--## the last day of a month
SELECT DISTINCT (date_trunc('month', at) + interval '1 month - 1 day')::date AS last_day FROM ugc.views
--## age in years
SELECT full_name, extract(year FROM age(birth_date))::int AS years FROM content.person
--## pivot with filters
SELECT film_id, count(*) FILTER (WHERE rating <= 3) AS bad, count(*) FILTER (WHERE rating BETWEEN 4 AND 7) AS fair, count(*) FILTER (WHERE rating >= 8) AS good FROM ugc.ratings GROUP BY film_id
--## pivot with sum and CASE
SELECT user_id, sum(CASE WHEN extract(year FROM at) = 2024 THEN seconds ELSE 0 END) AS y2024, sum(CASE WHEN extract(year FROM at) = 2025 THEN seconds ELSE 0 END) AS y2025 FROM ugc.views GROUP BY user_id
--## unpivot with lateral values
SELECT f.id, m.metric, m.value FROM content.film_work f CROSS JOIN LATERAL (VALUES ('rating', f.rating::numeric), ('budget', f.budget)) AS m (metric, value)
--## the newest rating by distinct on
SELECT DISTINCT ON (user_id, film_id) user_id, film_id, rating, rated_at FROM ugc.ratings ORDER BY user_id, film_id, rated_at DESC, id DESC
--## the newest rating by lateral
SELECT f.id, r.rating FROM content.film_work f LEFT JOIN LATERAL (SELECT rating FROM ugc.ratings WHERE film_id = f.id ORDER BY rated_at DESC LIMIT 1) r ON true
--## duplicates
SELECT lower(trim(title)) AS title, count(*) AS n, array_agg(id ORDER BY created_at) AS ids FROM content.film_work GROUP BY 1 HAVING count(*) > 1
--## films nobody rated
SELECT f.id, f.title FROM content.film_work f WHERE NOT EXISTS (SELECT 1 FROM ugc.ratings r WHERE r.film_id = f.id)
--## an anti join
SELECT f.id FROM content.film_work f LEFT JOIN ugc.ratings r ON r.film_id = f.id WHERE r.id IS NULL
--## orphans
SELECT v.film_id, count(*) AS views FROM ugc.views v LEFT JOIN content.film_work f ON f.id = v.film_id WHERE f.id IS NULL GROUP BY 1
--## coverage of columns
SELECT count(*) AS rows, count(description) AS described, avg((description IS NULL)::int)::numeric(5, 4) AS missing, count(DISTINCT type) AS types FROM content.film_work
--## lengths of texts
SELECT min(length(title)) AS shortest, max(char_length(title)) AS longest, avg(octet_length(title))::int AS bytes FROM content.film_work
--## the first word
SELECT split_part(title, ' ', 1) AS word, count(*) AS n FROM content.film_work GROUP BY 1 ORDER BY n DESC, word
--## words of titles
SELECT word, count(*) AS n FROM content.film_work, regexp_split_to_table(lower(title), '\s+') AS word GROUP BY word
--## an initial
SELECT upper(left(full_name, 1)) AS initial, string_agg(full_name, ', ' ORDER BY full_name) AS people FROM content.person GROUP BY 1
--## masked names
SELECT regexp_replace(full_name, '(?<=.).', '*', 'g') AS masked, overlay(full_name PLACING '***' FROM 2 FOR 3) AS covered FROM content.person
--## a slug
SELECT trim(BOTH '-' FROM regexp_replace(lower(title), '[^a-z0-9]+', '-', 'g')) AS slug FROM content.film_work
--## numbers inside a text
SELECT title, (regexp_match(title, '(\d+)$'))[1]::int AS part FROM content.film_work WHERE title ~ '\d+$'
--## a hash as key
SELECT md5(concat_ws('|', user_id, film_id, rated_at)) AS key, rating FROM ugc.ratings
--## a stable bucket for experiments
SELECT user_id, abs(hashtext(user_id::text)) % 100 AS bucket FROM ugc.ratings
--## sha256 of an address
SELECT encode(sha256(convert_to(host(address), 'UTF8')), 'hex') AS who FROM ugc.ratings WHERE address IS NOT NULL
--## networks
SELECT network(set_masklen(address, 24)) AS net, count(*) AS n FROM ugc.ratings WHERE family(address) = 4 GROUP BY 1
--## money as text
SELECT to_char(budget, 'FM999G999G990D00') AS shown, round(budget, -3) AS rounded, trunc(budget / 1e6, 1) AS millions FROM content.film_work
--## logarithmic scale
SELECT floor(log(greatest(budget, 1)))::int AS magnitude, count(*) AS films FROM content.film_work GROUP BY 1
--## geometric mean
SELECT exp(avg(ln(nullif(rating, 0)))) AS mean FROM ugc.ratings
--## Bayesian rating
WITH means AS (SELECT avg(rating) AS m, 10 AS c FROM ugc.ratings)
SELECT film_id, (count(*) * avg(rating) + c * m) / (count(*) + c) AS score FROM ugc.ratings, means GROUP BY film_id, c, m
--## Wilson lower bound
SELECT film_id, ((p + 1.9208 / n) - 1.96 * sqrt((p * (1 - p) + 0.9604 / n) / n)) / (1 + 3.8416 / n) AS bound
FROM (SELECT film_id, avg((rating > 5)::int) AS p, count(*) AS n FROM ugc.ratings GROUP BY film_id) x
--## exponential decay
SELECT film_id, sum(rating * exp(-extract(epoch FROM now() - rated_at) / 2592000)) AS fresh FROM ugc.ratings GROUP BY film_id
--## pairs watched together
SELECT a.film_id AS one, b.film_id AS other, count(*) AS users FROM ugc.views a JOIN ugc.views b ON b.user_id = a.user_id AND b.film_id > a.film_id GROUP BY 1, 2 HAVING count(*) >= 2
--## people who worked together
SELECT least(a.person_id, b.person_id) AS one, greatest(a.person_id, b.person_id) AS other, count(DISTINCT a.film_work_id) AS films
FROM content.person_film_work a JOIN content.person_film_work b ON b.film_work_id = a.film_work_id AND b.person_id <> a.person_id GROUP BY 1, 2
--## similar films by shared genres
SELECT a.film_work_id, b.film_work_id AS similar_id, count(*)::float / sqrt(max(x.n) * max(y.n)) AS cosine
FROM content.genre_film_work a JOIN content.genre_film_work b USING (genre_id)
JOIN (SELECT film_work_id, count(*) AS n FROM content.genre_film_work GROUP BY 1) x ON x.film_work_id = a.film_work_id
JOIN (SELECT film_work_id, count(*) AS n FROM content.genre_film_work GROUP BY 1) y ON y.film_work_id = b.film_work_id
WHERE a.film_work_id <> b.film_work_id GROUP BY 1, 2
--## genre paths
WITH RECURSIVE tree AS (
  SELECT id, name, name AS path, 1 AS depth FROM content.genre WHERE parent_id IS NULL
  UNION ALL SELECT g.id, g.name, t.path || ' / ' || g.name, t.depth + 1 FROM content.genre g JOIN tree t ON t.id = g.parent_id
) SELECT path, depth FROM tree ORDER BY path
--## genres with all that are below them
WITH RECURSIVE below AS (SELECT id AS root, id FROM content.genre UNION SELECT b.root, g.id FROM below b JOIN content.genre g ON g.parent_id = b.id)
SELECT root, count(*) - 1 AS descendants FROM below GROUP BY root
--## a calendar
SELECT d::date AS day, extract(week FROM d)::int AS week, to_char(d, 'Dy') AS name, extract(isodow FROM d) IN (6, 7) AS is_weekend FROM generate_series(date '2024-01-01', date '2024-12-31', '1 day') AS d
--## documents of people
SELECT p.id, p.full_name, jsonb_agg(DISTINCT pf.role) AS roles, jsonb_agg(jsonb_build_object('id', f.id, 'title', f.title) ORDER BY f.title) AS films
FROM content.person p JOIN content.person_film_work pf ON pf.person_id = p.id JOIN content.film_work f ON f.id = pf.film_work_id GROUP BY p.id, p.full_name
--## people by role in one row
SELECT film_work_id, jsonb_object_agg(role, names) AS people FROM (
  SELECT pf.film_work_id, pf.role, array_agg(p.full_name ORDER BY p.full_name) AS names FROM content.person_film_work pf JOIN content.person p ON p.id = pf.person_id GROUP BY 1, 2) x GROUP BY 1
--## what changed, by three tables
SELECT f.id, greatest(f.updated_at, max(g.updated_at)) AS updated_at FROM content.film_work f
LEFT JOIN content.genre_film_work fg ON fg.film_work_id = f.id LEFT JOIN content.genre g ON g.id = fg.genre_id
WHERE f.updated_at >= :since OR g.updated_at >= :since GROUP BY f.id
--## countries out of attributes
SELECT attributes ->> 'country' AS country, count(*) AS films, avg(rating) AS mean FROM content.film_work WHERE attributes ? 'country' GROUP BY 1
--## a path into attributes
SELECT attributes #>> '{crew,director}' AS director, jsonb_array_length(attributes -> 'awards') AS awards FROM content.film_work
--## awards one by one
SELECT f.id, a.value::int AS award FROM content.film_work f, jsonb_array_elements_text(f.attributes -> 'awards') WITH ORDINALITY AS a (value, place) WHERE a.place = 1
--## contained attributes
SELECT id FROM content.film_work WHERE attributes @> '{"country": "US"}' AND NOT attributes @> '{"adult": true}'
--## a json path with a variable
SELECT id, jsonb_path_query_array(attributes, '$.awards[*] ? (@ > $n)', '{"n": 5}') AS awards FROM content.film_work
--## attributes without some keys
SELECT id, attributes - 'crew' - '{awards}'::text[] AS rest, attributes || jsonb_build_object('title', title) AS more FROM content.film_work
--## keys in use
SELECT key, count(*) AS films FROM content.film_work, jsonb_object_keys(attributes) AS key GROUP BY key
--## tags
SELECT tag, count(*) AS films FROM content.film_work, unnest(tags) AS tag GROUP BY tag ORDER BY films DESC, tag
--## films with a tag
SELECT id FROM content.film_work WHERE 'space' = ANY (tags) AND tags && ARRAY['tag1', 'tag2'] AND cardinality(tags) > 1
--## sums of arrays
SELECT id, (SELECT sum(s) FROM unnest(scores) AS s) AS total, scores[1:2] AS first_two, array_length(scores, 1) AS n FROM content.film_work
--## arrays with places
SELECT f.id, s.score, s.place FROM content.film_work f CROSS JOIN LATERAL unnest(f.scores) WITH ORDINALITY AS s (score, place)
--## licences in force
SELECT id, lower(licence) AS begins, upper(licence) - lower(licence) AS days FROM content.film_work WHERE licence @> date '2020-06-01'
--## overlapping licences
SELECT a.id, b.id AS other, a.licence * b.licence AS shared FROM content.film_work a JOIN content.film_work b ON a.licence && b.licence AND a.id < b.id
--## gaps between licences
SELECT id, lower(licence) - lag(upper(licence)) OVER (ORDER BY licence) AS gap FROM content.film_work
--## busy periods
SELECT range_agg(licence) AS covered FROM content.film_work
--## hours of film
SELECT sum(length) AS total, justify_hours(avg(length)) AS mean, extract(epoch FROM max(length))::int / 60 AS minutes FROM content.film_work
--## ranking by text search
SELECT id, ts_rank_cd(search, query) AS rank FROM content.film_work, websearch_to_tsquery('english', 'star -trek') AS query WHERE search @@ query ORDER BY rank DESC
--## enum order
SELECT mood, count(*) AS films FROM content.film_work GROUP BY mood ORDER BY mood NULLS FIRST
--## enum as text
SELECT coalesce(mood::text, 'none') AS mood, mood = 'happy' AS is_happy, enum_range(NULL::content.mood)::text[] AS all_moods FROM content.film_work
--## fields of an address
SELECT (studio).city AS city, count(*) AS films FROM content.film_work GROUP BY (studio).city
--## grouping sets with names
SELECT CASE WHEN grouping(type) = 1 THEN 'all' ELSE type END AS type, CASE WHEN grouping(mood) = 1 THEN 'all' ELSE mood::text END AS mood, count(*) AS films FROM content.film_work GROUP BY GROUPING SETS ((type, mood), (type), ())
--## subtotals by rollup
SELECT extract(year FROM at)::int AS year, extract(month FROM at)::int AS month, sum(seconds) AS seconds FROM ugc.views GROUP BY ROLLUP (1, 2)
--## all combinations by cube
SELECT type, mood, count(*) AS films FROM content.film_work GROUP BY CUBE (type, mood) ORDER BY type NULLS LAST, mood NULLS LAST
--## first and last of a group
SELECT DISTINCT film_id, first_value(rating) OVER w AS first_rating, last_value(rating) OVER w AS last_rating FROM ugc.ratings
WINDOW w AS (PARTITION BY film_id ORDER BY rated_at ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
--## the value of the row with the maximum
SELECT film_id, (array_agg(user_id ORDER BY rating DESC, rated_at))[1] AS best_friend FROM ugc.ratings GROUP BY film_id
--## carry the last value forward
SELECT day, max(views) OVER (PARTITION BY filled) AS views FROM (
  SELECT d.day, v.views, count(v.views) OVER (ORDER BY d.day) AS filled FROM (SELECT generate_series(date '2024-01-01', date '2024-01-10', '1 day')::date AS day) d
  LEFT JOIN (SELECT at::date AS day, count(*) AS views FROM ugc.views GROUP BY 1) v USING (day)) x
--## a range frame in days
SELECT at, sum(seconds) OVER (PARTITION BY film_id ORDER BY at RANGE BETWEEN interval '7 days' PRECEDING AND CURRENT ROW) AS week FROM ugc.views
--## without ties and the row itself
SELECT id, avg(rating) OVER (PARTITION BY film_id ORDER BY rating GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS others FROM ugc.ratings
--## two aggregates of different grain
SELECT f.id, r.n AS ratings, v.n AS views FROM content.film_work f
LEFT JOIN (SELECT film_id, count(*) AS n FROM ugc.ratings GROUP BY 1) r ON r.film_id = f.id LEFT JOIN (SELECT film_id, count(*) AS n FROM ugc.views GROUP BY 1) v ON v.film_id = f.id
--## a full outer comparison
SELECT coalesce(r.film_id, v.film_id) AS film_id, r.n IS NULL AS only_viewed, v.n IS NULL AS only_rated
FROM (SELECT film_id, count(*) AS n FROM ugc.ratings GROUP BY 1) r FULL JOIN (SELECT film_id, count(*) AS n FROM ugc.views GROUP BY 1) v ON v.film_id = r.film_id
--## differences of two sets
(SELECT film_id FROM ugc.views EXCEPT SELECT film_id FROM ugc.ratings) UNION ALL (SELECT film_id FROM ugc.ratings EXCEPT SELECT film_id FROM ugc.views)
--## intersect all
SELECT user_id FROM ugc.views INTERSECT ALL SELECT user_id FROM ugc.ratings
--## events of several kinds in one stream
SELECT user_id, at, 'view' AS kind, seconds::text AS value FROM ugc.views UNION ALL SELECT user_id, rated_at, 'rating', rating::text FROM ugc.ratings ORDER BY at
--## is distinct from
SELECT a.id FROM content.film_work a JOIN content.film_work b ON b.id = a.id WHERE a.description IS DISTINCT FROM b.description
--## row values in IN
SELECT * FROM ugc.ratings WHERE (user_id, film_id) IN (SELECT user_id, film_id FROM ugc.views)
--## ALL over a subquery
SELECT id FROM content.film_work WHERE budget > ALL (SELECT avg(budget) FROM content.film_work GROUP BY type)
--## a keyset page
SELECT id, title FROM content.film_work WHERE (updated_at, id) > (timestamptz '2020-01-01', '00000000-0000-0000-0000-000000000005'::uuid) ORDER BY updated_at, id LIMIT 100
--## sample of rows
SELECT * FROM ugc.ratings TABLESAMPLE SYSTEM (10) REPEATABLE (42)
--## random order with a seed column
SELECT id FROM content.film_work ORDER BY md5(id::text || '42') LIMIT 5
--## time zones
SELECT rated_at AT TIME ZONE 'UTC' AT TIME ZONE 'Europe/Moscow' AS there, timezone('Asia/Tokyo', rated_at) AS tokyo FROM ugc.ratings
--## five-minute buckets
SELECT date_bin('5 minutes', at, timestamptz '2024-01-01') AS bucket, count(*) AS n FROM ugc.views GROUP BY 1
--## buckets by arithmetic
SELECT to_timestamp(floor(extract(epoch FROM at) / 900) * 900) AS bucket, count(*) AS n FROM ugc.views GROUP BY 1
--## make dates
SELECT make_date(extract(year FROM creation_date)::int, 1, 1) AS new_year, creation_date - make_date(extract(year FROM creation_date)::int, 1, 1) AS day FROM content.film_work
--## parse dates
SELECT to_date('25.05.1977', 'DD.MM.YYYY') AS released, to_timestamp('2024-01-01 10:00', 'YYYY-MM-DD HH24:MI') AS at, '2024-01-01'::date + 7 AS later
--## intervals
SELECT now() - interval '1 year 2 months 3 days' AS then_, interval '90' MINUTE AS length, make_interval(days => 10, hours => 2) AS pause, justify_interval(interval '40 days') AS neat
--## is finite
SELECT count(*) FILTER (WHERE isfinite(updated_at)) AS dated, bool_and(updated_at >= created_at) AS sane FROM content.film_work
--## booleans
SELECT film_id, bool_or(rating = 10) AS loved, every(rating > 1) AS fine, count(*) FILTER (WHERE review IS NOT NULL AND review <> '') > 0 AS discussed FROM ugc.ratings GROUP BY film_id
--## null handling
SELECT num_nulls(description, file_path, mood) AS gaps, nullif(trim(description), '') AS description, coalesce(file_path, description, title) AS any_text FROM content.film_work
--## lists in an order of their own
SELECT title FROM content.film_work ORDER BY array_position(ARRAY['sad', 'ok', 'happy']::content.mood[], mood), title COLLATE "C"
--## case-insensitive search
SELECT id FROM content.film_work WHERE title ILIKE '%star%' AND title !~* 'trek\s+1\d*$' AND lower(title) = ANY (ARRAY['star wars 3', 'star wars 6'])
--## similar to
SELECT id FROM content.film_work WHERE title SIMILAR TO '(Star|Wars)%' ESCAPE '\' OR title LIKE '%!%%' ESCAPE '!'
--## a query with several cursors
SELECT r.id, r.rated_at, f.title FROM ugc.ratings r JOIN content.film_work f ON f.id = r.film_id WHERE r.rated_at >= :since AND r.rated_at < :until
--## a materialized step
WITH heavy AS MATERIALIZED (SELECT film_id, count(*) AS n FROM ugc.views GROUP BY 1), light AS NOT MATERIALIZED (SELECT id, title FROM content.film_work)
SELECT l.title, h.n FROM heavy h JOIN light l ON l.id = h.film_id
--## constants joined as a table
SELECT f.title, c.label FROM content.film_work f JOIN (VALUES ('movie', 'Film'), ('tv_show', 'Series')) AS c (code, label) ON c.code = f.type
--## a scalar from WITH
WITH total AS (SELECT count(*) AS n FROM ugc.views) SELECT film_id, count(*)::numeric / (SELECT n FROM total) AS share FROM ugc.views GROUP BY film_id
--## the day with most views
SELECT at::date AS day, count(*) AS n FROM ugc.views GROUP BY 1 ORDER BY n DESC FETCH FIRST 1 ROW WITH TIES
--## bits
SELECT bit_or(1 << (rating - 1)) AS used, bit_and(rating) AS common, rating & 1 = 1 AS odd FROM ugc.ratings GROUP BY rating
--## bytes
SELECT encode(convert_to(title, 'UTF8'), 'base64') AS text, length(convert_to(title, 'UTF8')) AS bytes FROM content.film_work
--## formatting
SELECT format('%s (%s)', title, extract(year FROM creation_date)) AS shown, lpad(row_number() OVER (ORDER BY title)::text, 4, '0') AS number, rpad(title, 20, '.') AS dotted FROM content.film_work
--## a rounded share that adds up
SELECT type, round(share, 2) AS share, sum(round(share, 2)) OVER () AS total FROM (SELECT type, count(*)::numeric / sum(count(*)) OVER () AS share FROM content.film_work GROUP BY type) x
--## years between two dates as a series
SELECT generate_series(min(extract(year FROM creation_date))::int, max(extract(year FROM creation_date))::int) AS year FROM content.film_work
--## distance of two points
SELECT point(1, 2) <-> point(4, 6) AS distance, circle(point(0, 0), 5) @> point(3, 4) AS inside
--## uuid and versions
SELECT gen_random_uuid() IS NOT NULL AS made, id::text LIKE '00000000-%' AS is_demo, substr(id::text, 25)::bigint AS number FROM content.film_work
--## share of weekend views
SELECT round(avg((extract(isodow FROM at) >= 6)::int), 3) AS share FROM ugc.views
--## rating by decade
SELECT (extract(year FROM creation_date)::int / 10) * 10 AS decade, avg(rating) AS mean, count(*) AS films FROM content.film_work GROUP BY 1 ORDER BY 1
--## first film of each person
SELECT p.full_name, min(f.creation_date) AS first_film FROM content.person p JOIN content.person_film_work pf ON pf.person_id = p.id JOIN content.film_work f ON f.id = pf.film_work_id GROUP BY p.id, p.full_name
--## users who rate everything the same
SELECT user_id, min(rating) AS rating FROM ugc.ratings GROUP BY user_id HAVING min(rating) = max(rating) AND count(*) > 2
--## time to the first rating
SELECT f.id, min(r.rated_at) - f.created_at AS waited FROM content.film_work f JOIN ugc.ratings r ON r.film_id = f.id GROUP BY f.id
--## budget per rated point
SELECT id, budget / nullif(rating, 0) AS price FROM content.film_work WHERE budget > 0
--## longest titles with their place
SELECT title, length(title) AS letters, rank() OVER (ORDER BY length(title) DESC) AS place FROM content.film_work FETCH FIRST 10 ROWS ONLY
--## reviews with numbers in them
SELECT id, array_length(regexp_split_to_array(review, '[0-9]'), 1) - 1 AS digits FROM ugc.ratings WHERE review ~ '[0-9]'
--## watched for longer than the mean of the film
SELECT v.user_id, v.film_id FROM ugc.views v WHERE v.seconds > (SELECT avg(x.seconds) FROM ugc.views x WHERE x.film_id = v.film_id)
