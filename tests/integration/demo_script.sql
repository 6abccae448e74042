-- What a presenter types in psql to show the demo cinema, statement by statement.

-- films
SET search_path TO content;

SELECT id, title, rating
FROM film_work
ORDER BY title
LIMIT 5;

-- ratings
SET search_path TO ugc;

SELECT film_id, rating
FROM ratings
ORDER BY film_id
LIMIT 5;

-- ratings with titles
SET search_path TO public;

SELECT
    fw.title,
    r.rating
FROM ugc.ratings r
JOIN content.film_work fw ON fw.id = r.film_id
ORDER BY fw.title
LIMIT 5;

-- film_dim before
SET search_path TO analytics;

SELECT film_id, title, rating
FROM film_dim
ORDER BY title
LIMIT 5;

-- film_dim by hand
INSERT INTO film_dim (film_id, title, rating, updated_at)
SELECT
    fw.id,
    fw.title,
    fw.rating,
    NOW()
FROM content.film_work fw
ON CONFLICT (film_id) DO UPDATE
SET
    title      = EXCLUDED.title,
    rating     = EXCLUDED.rating,
    updated_at = NOW();

-- film_dim after
SELECT film_id, title, rating
FROM film_dim
ORDER BY title
LIMIT 5;

-- pipelines
SET search_path TO etl;

SELECT id, name, status
FROM etl_pipelines;

-- pipelines in full
SELECT id, name, source_query, target_table, mode, batch_size, enabled, status
FROM etl_pipelines;

-- the end
\q
