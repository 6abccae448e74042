--## one table; key: id
SELECT id, title, rating FROM content.film WHERE rating > 1

--## inner join; key: id
SELECT f.id, f.title, s.name FROM content.film f JOIN content.studio s ON s.id = f.studio_id

--## left join; key: id
SELECT f.id, s.name, s.country FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id

--## chain of left joins; key: id
SELECT p.id, f.title, s.name FROM content.part p LEFT JOIN content.film f ON f.id = p.film_id LEFT JOIN
content.studio s ON s.id = f.studio_id

--## right join; key: id
SELECT v.id, f.title FROM content.film f RIGHT JOIN content.vote v ON v.film_id = f.id

--## full join plain; key: id
SELECT coalesce(f.id, s.id) AS id, f.title, s.name FROM content.film f FULL JOIN content.studio s ON s.id = f.id

--## full join using; key: id
SELECT id, f.title, s.name FROM content.film f FULL JOIN content.studio s USING (id)

--## group by with left joins; key: id
SELECT f.id, f.title, count(v.id) AS votes, sum(v.score) AS score FROM content.film f LEFT JOIN content.vote v ON
v.film_id = f.id GROUP BY f.id

--## aggregates in lateral; key: id
SELECT f.id, f.title, c.n, d.n AS m FROM content.film f LEFT JOIN LATERAL (SELECT count(*) AS n FROM content.part p
JOIN content.person n ON n.id = p.person_id   WHERE p.film_id = f.id) c ON true LEFT JOIN (SELECT film_id, count(*)
AS n FROM content.vote GROUP BY film_id) d ON d.film_id = f.id

--## not exists; key: id
SELECT f.id, f.title FROM content.film f WHERE NOT EXISTS (SELECT FROM content.vote v WHERE v.film_id = f.id AND
v.score > 1)

--## exists by two tables; key: id
SELECT n.id, n.name FROM content.person n WHERE EXISTS (SELECT FROM content.part p JOIN content.film f ON f.id =
p.film_id WHERE p.person_id = n.id AND f.kind = 'm')

--## anti-join by null; key: id
SELECT f.id, f.title FROM content.film f LEFT JOIN content.vote v ON v.film_id = f.id AND v.score = 3 WHERE v.id IS
NULL

--## in; key: id
SELECT id, title FROM content.film WHERE studio_id IN (SELECT id FROM content.studio WHERE country = 'fr')

--## not in nullable; key: id; every key: content.part
SELECT id, title FROM content.film WHERE id NOT IN (SELECT film_id FROM content.part WHERE role = 'd')

--## not in, never null; key: id
SELECT id, title FROM content.film WHERE id NOT IN (SELECT film_id FROM content.film_genre)

--## in as a value; key: id; every key: content.studio
SELECT id, studio_id IN (SELECT id FROM content.studio) AS known FROM content.film

--## distinct on; key: film_id
SELECT DISTINCT ON (film_id) film_id, id, score FROM content.vote ORDER BY film_id, at DESC, id

--## distinct on, key of the winner; key: id
SELECT DISTINCT ON (film_id) id, film_id, score FROM content.vote ORDER BY film_id, at DESC, id

--## window; key: id
SELECT id, film_id, rank() OVER (PARTITION BY film_id ORDER BY score, id) AS place FROM content.vote

--## two windows; key: id
SELECT v.id, rank() OVER w AS a, count(*) OVER (PARTITION BY v.film_id, v.person_id) AS b FROM content.vote v
WINDOW w AS (PARTITION BY v.film_id ORDER BY v.score)

--## top of each group by window; key: id
SELECT r.film_id, r.id, f.title FROM (SELECT v.id, v.film_id, row_number() OVER (PARTITION BY v.film_id ORDER BY
v.score DESC NULLS LAST, v.id) AS n FROM content.vote v) r LEFT JOIN content.film f ON f.id = r.film_id WHERE r.n =
1

--## window over a join; key: id
SELECT p.id, f.studio_id, count(*) OVER (PARTITION BY f.studio_id) AS n FROM content.part p JOIN content.film f ON
f.id = p.film_id

--## group by two tables; key: country, kind
SELECT s.country, f.kind, count(*) AS n FROM content.film f JOIN content.studio s ON s.id = f.studio_id GROUP BY 1,
2

--## group by an expression; key: half, kind
SELECT rating / 2 AS half, kind, count(*) AS n FROM content.film GROUP BY rating / 2, kind

--## group by the nullable side and another; key: kind, country
SELECT f.kind, coalesce(s.country, '-') AS country, count(*) AS n FROM content.film f LEFT JOIN content.studio s ON
s.id = f.studio_id GROUP BY 1, 2

--## union; key: film_id, source
SELECT film_id, 'v' AS source FROM content.vote UNION SELECT film_id, 'p' FROM content.part WHERE role = 'a'

--## union all of joins; key: key
SELECT 'f' || f.id AS key, s.name FROM content.film f JOIN content.studio s ON s.id = f.studio_id UNION ALL SELECT
'p' || p.id, b.name FROM content.person p LEFT JOIN content.person b ON b.id = p.boss_id

--## except; key: id
SELECT id FROM content.film EXCEPT SELECT film_id FROM content.vote WHERE score = 1

--## intersect; key: id
SELECT id FROM content.film INTERSECT ALL SELECT film_id FROM content.part

--## with; key: id
WITH scored AS (SELECT film_id, avg(score)::numeric(9, 3) AS score FROM content.vote GROUP BY film_id) SELECT f.id,
a.score, b.score AS again FROM content.film f LEFT JOIN scored a ON a.film_id = f.id LEFT JOIN scored b ON
b.film_id = f.studio_id

--## lateral with limit; key: id, best
SELECT f.id, b.id AS best, b.name FROM content.film f CROSS JOIN LATERAL (SELECT v.id, n.name FROM content.vote v
LEFT JOIN content.person n ON n.id = v.person_id WHERE v.film_id = f.id ORDER BY v.score DESC NULLS LAST, v.id
LIMIT 2) b

--## views; key: film, person
SELECT a.film, a.person, a.actor, l.score FROM content.acted a LEFT JOIN content.latest_vote l ON l.film_id =
a.film

--## composite key; key: film_id, genre_id
SELECT x.film_id, x.genre_id, f.title, g.name FROM content.film_genre x JOIN content.film f ON f.id = x.film_id
JOIN content.genre g ON g.id = x.genre_id

--## expression as key; key: code
SELECT upper(f.code) || '-' || f.id AS code, s.name FROM content.film f LEFT JOIN content.studio s ON s.id =
f.studio_id

--## self join; key: id
SELECT a.id, b.name AS boss, c.name AS their_boss FROM content.person a LEFT JOIN content.person b ON b.id =
a.boss_id LEFT JOIN content.person c ON c.id = b.boss_id

--## scalar sub-selects; key: id
SELECT f.id, (SELECT max(score) FROM content.vote v WHERE v.film_id = f.id) AS best, array_to_string(ARRAY(SELECT
g.name FROM content.film_genre x JOIN content.genre g ON g.id = x.genre_id WHERE x.film_id = f.id ORDER BY 1),
0::text) AS genres FROM content.film f

--## nested grouping; key: kind
SELECT t.kind, count(*) AS films, sum(t.n) AS votes FROM (SELECT f.id, f.kind, count(v.id) AS n FROM content.film f
LEFT JOIN content.vote v ON v.film_id = f.id GROUP BY f.id, f.kind) t GROUP BY t.kind

--## partitions; key: id
SELECT f.id, count(x.id) AS visits, max(x.day) AS last FROM content.film f JOIN content.visit x ON x.film_id = f.id
GROUP BY f.id

--## grouping sets; key: kind
SELECT f.kind, f.studio_id, count(*) AS n, grouping(f.studio_id) AS g FROM content.film f GROUP BY GROUPING SETS
((f.kind, f.studio_id), (f.kind))

--## row comparison; key: id
SELECT v.id, p.role FROM content.vote v JOIN content.part p ON (p.film_id, p.person_id) = (v.film_id, v.person_id)

--## natural and using; key: id, genre_id
SELECT id, x.genre_id, f.title FROM content.film f JOIN (SELECT film_id AS id, genre_id FROM content.film_genre) x
USING (id)

--## range join; key: id; every key: content.vote
SELECT f.id, count(v.id) AS lower FROM content.film f LEFT JOIN content.vote v ON v.score < f.rating GROUP BY f.id

--## nullable bridge back; key: genre
SELECT f.id, g.id AS genre, s.name FROM content.genre g LEFT JOIN content.film f ON f.id = g.film_id LEFT JOIN
content.studio s ON s.id = f.studio_id AND s.name = g.name

--## condition of a left join on the kept side; key: id
SELECT p.id, f.id AS film, s.name FROM content.part p JOIN content.film f ON f.id = p.film_id LEFT JOIN
content.studio s ON s.id = f.studio_id AND p.person_id = f.rating

--## back through a nullable side; key: id
SELECT v.id, n.name, v.score FROM content.film f LEFT JOIN content.person n ON n.id = f.rating LEFT JOIN
content.part p ON p.person_id = n.id JOIN content.vote v ON v.film_id = f.id

--## two ways round an outer join; key: id; every key: content.film
SELECT v.id, f.title, s.country FROM content.vote v JOIN content.film f ON v.at < 9 LEFT JOIN content.studio s ON
s.id = f.studio_id AND s.id = v.film_id

--## key of a union inside; key: id; every key: content.film
SELECT u.id, u.film_id, f.title FROM (SELECT id, film_id FROM content.vote UNION ALL SELECT id + 100, film_id FROM
content.part) u LEFT JOIN content.film f ON f.id = u.film_id

--## outer reference two levels up; key: id
SELECT f.id, f.title FROM content.film f WHERE EXISTS (SELECT FROM content.part p WHERE p.film_id = f.id AND NOT
EXISTS (SELECT FROM content.vote v WHERE v.person_id = p.person_id AND v.film_id = f.id))

--## sub-select in a join's condition; key: id
SELECT f.id, s.name FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id AND EXISTS (SELECT FROM
content.genre g WHERE g.film_id = s.id)

--## window with groups of null; key: id
SELECT v.id, n.boss_id, count(*) OVER (PARTITION BY n.boss_id) AS n FROM content.vote v JOIN content.person n ON
n.id = v.person_id

--## distinct; key: kind, country
SELECT DISTINCT f.kind, s.country FROM content.film f JOIN content.studio s ON s.id = f.studio_id

--## semi-join by two columns; key: id
SELECT id, film_id FROM content.vote WHERE (film_id, person_id) IN (SELECT film_id, person_id FROM content.part)

--## first of two columns; key: label
SELECT coalesce(s.name, f.title) AS label, f.kind FROM content.film f LEFT JOIN content.studio s ON s.id =
f.studio_id

--## label of grouping sets; key: kind, label
SELECT f.kind, concat(f.kind, f.studio_id) AS label, count(*) AS n FROM content.film f GROUP BY GROUPING SETS
((f.kind, f.studio_id), (f.kind))

--## not exists between two tables; key: id; every key: content.film
SELECT v.id, f.id AS film FROM content.film f JOIN content.vote v ON v.at < 9 WHERE NOT EXISTS (SELECT FROM
content.part p WHERE p.film_id = f.id AND p.person_id = v.person_id)

--## window over the nullable side; key: id; every key: content.film, content.studio
SELECT g.id, w.n FROM content.genre g LEFT JOIN (SELECT f.id, count(*) OVER (PARTITION BY s.country) AS n FROM
content.film f LEFT JOIN content.studio s ON s.id = f.studio_id) w ON w.id = g.film_id

--## lateral union of columns; key: id, k
SELECT f.id, u.k FROM content.film f CROSS JOIN LATERAL (SELECT f.id AS k UNION ALL SELECT f.rating) u

--## join by a default; key: id; every key: content.genre
SELECT f.id, g.id AS genre FROM content.film f LEFT JOIN content.studio s ON s.id = f.studio_id JOIN content.genre
g ON g.name = coalesce(s.name, 'g')
