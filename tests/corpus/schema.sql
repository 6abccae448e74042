CREATE SCHEMA content;
CREATE SCHEMA ugc;
CREATE SCHEMA etl;
CREATE SCHEMA analytics;

CREATE TYPE content.mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE content.address AS (street text, city text);
CREATE DOMAIN content.score AS numeric(3, 1) CHECK (VALUE BETWEEN 0 AND 10);
CREATE SEQUENCE content.numbers;

CREATE TABLE content.film_work (
    id uuid PRIMARY KEY,
    title text NOT NULL,
    description text,
    creation_date date,
    file_path text,
    rating content.score,
    type text NOT NULL DEFAULT 'movie',
    mood content.mood,
    tags text[] NOT NULL DEFAULT '{}',
    scores int[],
    attributes jsonb NOT NULL DEFAULT '{}',
    document json,
    studio content.address,
    licence daterange,
    seasons int4multirange,
    search tsvector GENERATED ALWAYS AS (to_tsvector('english', title)) STORED,
    length interval,
    budget numeric(14, 2),
    pg_rating text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE content.genre (
    id uuid PRIMARY KEY,
    name text NOT NULL UNIQUE,
    parent_id uuid REFERENCES content.genre,
    updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE content.person (
    id uuid PRIMARY KEY,
    full_name text NOT NULL,
    birth_date date
);
CREATE TABLE content.genre_film_work (
    film_work_id uuid NOT NULL REFERENCES content.film_work,
    genre_id uuid NOT NULL REFERENCES content.genre,
    PRIMARY KEY (film_work_id, genre_id)
);
CREATE TABLE content.person_film_work (
    film_work_id uuid NOT NULL REFERENCES content.film_work,
    person_id uuid NOT NULL REFERENCES content.person,
    role text NOT NULL,
    PRIMARY KEY (film_work_id, person_id, role)
);
CREATE TABLE content."Odd Name" ("Key" int PRIMARY KEY, "a ""quoted"" column" text, "группа" text);
CREATE TABLE ugc.ratings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    user_id uuid NOT NULL,
    film_id uuid NOT NULL REFERENCES content.film_work,
    rating int NOT NULL CHECK (rating BETWEEN 1 AND 10),
    review text,
    address inet,
    rated_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE ugc.views (
    user_id uuid NOT NULL,
    film_id uuid NOT NULL,
    seconds int NOT NULL,
    at timestamptz NOT NULL
) PARTITION BY RANGE (at);
CREATE TABLE ugc.views_2024 PARTITION OF ugc.views FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE ugc.views_2025 PARTITION OF ugc.views FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');
CREATE VIEW content.films_and_genres AS
    SELECT f.id, f.title, g.name AS genre
    FROM content.film_work f
    JOIN content.genre_film_work fg ON fg.film_work_id = f.id
    JOIN content.genre g ON g.id = fg.genre_id;

INSERT INTO content.film_work (id, title, description, creation_date, rating, mood, tags, scores, attributes, document,
                               studio, licence, seasons, length, budget, pg_rating)
SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'Star ' || CASE n % 3 WHEN 0 THEN 'Wars' ELSE 'Trek' END
       || ' ' || n, 'A long time ago, part ' || n, date '1977-05-25' + n * 100, (n % 10)::numeric,
       (ARRAY['sad', 'ok', 'happy'])[n % 3 + 1]::content.mood, ARRAY['space', 'tag' || n % 4], ARRAY[n, n * 2, n * 3],
       jsonb_build_object('country', CASE n % 2 WHEN 0 THEN 'US' ELSE 'GB' END, 'awards', jsonb_build_array(n, n + 1),
                          'crew', jsonb_build_object('director', 'Person ' || n)),
       json_build_object('n', n), ROW('Street ' || n, 'City')::content.address,
       daterange(date '2020-01-01' + n, date '2021-01-01' + n), int4multirange(int4range(1, n + 2)),
       make_interval(mins => 90 + n), 1000000.50 * n, 'PG-13'
FROM generate_series(1, 20) AS n;
INSERT INTO content.genre (id, name, parent_id)
SELECT ('10000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'Genre ' || n,
       CASE WHEN n > 1 THEN ('10000000-0000-0000-0000-' || lpad((n / 2)::text, 12, '0'))::uuid END
FROM generate_series(1, 7) AS n;
INSERT INTO content.person
SELECT ('20000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid, 'Person ' || n, date '1950-01-01' + n * 365
FROM generate_series(1, 10) AS n;
INSERT INTO content.genre_film_work
SELECT f.id, g.id FROM content.film_work f, content.genre g WHERE hashtext(f.id::text || g.id::text) % 3 = 0;
INSERT INTO content.person_film_work
SELECT f.id, p.id, (ARRAY['actor', 'director', 'writer'])[1 + abs(hashtext(p.id::text)) % 3]
FROM content.film_work f, content.person p WHERE hashtext(f.id::text || p.id::text) % 4 = 0;
INSERT INTO content."Odd Name" VALUES (1, 'x', 'y');
INSERT INTO ugc.ratings (user_id, film_id, rating, review, address, rated_at)
SELECT ('30000000-0000-0000-0000-' || lpad((n % 5)::text, 12, '0'))::uuid,
       ('00000000-0000-0000-0000-' || lpad((n % 20 + 1)::text, 12, '0'))::uuid, n % 10 + 1, 'Review ' || n || ', 100% good',
       '10.0.0.1'::inet + n, timestamptz '2024-06-01 12:00+00' + n * interval '7 hours'
FROM generate_series(1, 60) AS n;
INSERT INTO ugc.views
SELECT user_id, film_id, rating * 600, rated_at FROM ugc.ratings;

-- What no query of an author may reach.
CREATE TABLE etl.etl_api_tokens (id int PRIMARY KEY, token_hash text);
INSERT INTO etl.etl_api_tokens VALUES (1, 'secret');
CREATE TABLE etl.etl_runs (id int PRIMARY KEY, status text);
CREATE TABLE analytics.film_dim (id uuid PRIMARY KEY, title text);
CREATE TABLE public.secrets (id int, secret text);
CREATE FUNCTION public.run_as_owner(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
    AS $$ BEGIN EXECUTE statement; END $$;
CREATE FUNCTION content.delete_everything() RETURNS int LANGUAGE sql SECURITY DEFINER
    AS $$ DELETE FROM ugc.ratings; SELECT 1 $$;
