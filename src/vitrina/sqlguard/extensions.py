"""List what queries may use of well-known extensions that the operator trusts (VITRINA_TRUSTED_EXTENSIONS).

Only pure computation: nothing that reads tables by name (tablefunc, dblink), changes the session, or decrypts.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Extension:
    """Hold names as a query writes them, without a schema; `st_*` is a pattern."""

    functions: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()

    def has_function(self, name: str) -> bool:
        return name in self.functions or any(
            "*" in pattern and fnmatchcase(name, pattern) for pattern in self.functions
        )


def _extension(functions: str = "", types: str = "", operators: str = "") -> Extension:
    return Extension(frozenset(functions.split()), frozenset(types.split()), frozenset(operators.split()))


KNOWN = {
    "citext": _extension("citext", "citext"),
    "cube": _extension(
        "cube cube_coord cube_coord_llur cube_dim cube_distance cube_enlarge cube_inter cube_is_point cube_ll_coord"
        " cube_size cube_subset cube_union cube_ur_coord distance_chebyshev distance_taxicab",
        "cube",
        "<#> <=> ~>",
    ),
    "earthdistance": _extension(
        "earth earth_box earth_distance gc_to_sec geo_distance latitude ll_to_earth longitude sec_to_gc", "earth", "<@>"
    ),
    "fuzzystrmatch": _extension(
        "daitch_mokotoff difference dmetaphone dmetaphone_alt levenshtein levenshtein_less_equal metaphone soundex"
        " text_soundex"
    ),
    "hstore": _extension(
        "akeys avals defined delete each exist exists_all exists_any fetchval hs_concat hs_contained hs_contains hstore"
        " hstore_to_array hstore_to_json hstore_to_json_loose hstore_to_jsonb hstore_to_jsonb_loose hstore_to_matrix"
        " isdefined isexists populate_record skeys slice slice_array svals tconvert",
        "hstore",
        "#= %# %%",
    ),
    "intarray": _extension(
        "icount idx intarray_del_elem intarray_push_array intarray_push_elem intset sort sort_asc sort_desc subarray"
        " uniq",
        "query_int",
    ),
    "ltree": _extension(
        "index lca ltree2text nlevel subltree subpath text2ltree",
        "lquery ltree ltxtquery",
        "?<@ ?@ ?@> ?~ ^<@ ^? ^@> ^~",
    ),
    "pg_trgm": _extension(
        "show_trgm similarity similarity_dist strict_word_similarity word_similarity",
        operators="%> %>> <% <->> <->>> <<% <<-> <<<->",
    ),
    "pgcrypto": _extension("digest gen_random_uuid hmac"),
    "postgis": _extension(
        "geography geometry geometrytype postgis_lib_version st_*",
        "box2d box3d geography geometry geometry_dump",
        "&&& &/& &< &<| &> <#> <<#>> <<->> |=| ~~= @@ |&> |>>",
    ),
    "unaccent": _extension("unaccent"),
    "uuid-ossp": _extension(
        "uuid_generate_v1 uuid_generate_v1mc uuid_generate_v3 uuid_generate_v4 uuid_generate_v5 uuid_nil uuid_ns_dns"
        " uuid_ns_oid uuid_ns_url uuid_ns_x500"
    ),
    "vector": _extension(
        "binary_quantize cosine_distance hamming_distance inner_product jaccard_distance l1_distance l2_distance"
        " l2_norm l2_normalize subvector vector_dims vector_norm",
        "halfvec sparsevec vector",
        "<#> <%> <+> <=> <~>",
    ),
}


def owner_of(kind: str, name: str) -> str | None:
    """Return the known extension that has such a function, type or operator, for the message of a refusal."""
    for extension, has in KNOWN.items():
        if has.has_function(name) if kind == "functions" else name in getattr(has, kind):
            return extension
    return None
