"""List what a query may use: functions, types and operators of pg_catalog; and PostgreSQL's keyword classes."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Each is a pg_catalog function that only computes from its arguments, the clock or the random generator. None reads
# catalogs, files, settings, sequences or large objects, runs text as SQL, locks, waits, signals, or assigns a
# transaction id. Some are left out although they look harmless: ts_stat and ts_rewrite run an argument as SQL,
# pg_input_is_valid reveals which types and tables exist, setseed changes the session. pg_typeof may only be called as
# `pg_typeof(x)::text`.
FUNCTIONS = _words("""
    any_value array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count covar_pop covar_samp every json_agg
    json_agg_strict json_object_agg json_object_agg_strict json_object_agg_unique json_object_agg_unique_strict
    jsonb_agg jsonb_agg_strict jsonb_object_agg jsonb_object_agg_strict jsonb_object_agg_unique
    jsonb_object_agg_unique_strict max min mode percentile_cont percentile_disc range_agg range_intersect_agg regr_avgx
    regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy stddev stddev_pop stddev_samp
    string_agg sum var_pop var_samp variance

    cume_dist dense_rank first_value lag last_value lead nth_value ntile percent_rank rank row_number

    abs acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh cbrt ceil ceiling cos cosd cosh cot cotd degrees
    div erf erfc exp factorial floor gamma gcd lcm lgamma ln log log10 min_scale mod pi pow power radians random
    random_normal round scale sign sin sind sinh sqrt tan tand tanh trim_scale trunc width_bucket

    ascii bit_count bit_length btrim casefold char_length character_length chr concat concat_ws convert convert_from
    convert_to crc32 crc32c decode encode format get_bit get_byte initcap is_normalized left length like lower lpad
    ltrim md5 notlike octet_length parse_ident position quote_ident quote_literal quote_nullable regexp_count
    regexp_instr regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table
    regexp_substr repeat replace reverse right rpad rtrim set_bit set_byte sha224 sha256 sha384 sha512 split_part
    starts_with string_to_array string_to_table strpos substr substring to_ascii to_bin to_hex to_oct translate
    unicode_assigned unistr upper

    age clock_timestamp date_add date_bin date_part date_subtract date_trunc isfinite justify_days justify_hours
    justify_interval make_date make_interval make_time make_timestamp make_timestamptz now statement_timestamp
    timeofday timezone to_char to_date to_number to_timestamp transaction_timestamp

    array_to_json json_array_elements json_array_elements_text json_array_length json_build_array json_build_object
    json_each json_each_text json_extract_path json_extract_path_text json_object json_object_keys json_populate_record
    json_populate_recordset json_strip_nulls json_to_record json_to_recordset json_typeof jsonb_array_elements
    jsonb_array_elements_text jsonb_array_length jsonb_build_array jsonb_build_object jsonb_concat jsonb_contained
    jsonb_contains jsonb_delete jsonb_delete_path jsonb_each jsonb_each_text jsonb_exists jsonb_exists_all
    jsonb_exists_any jsonb_extract_path jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_keys
    jsonb_path_exists jsonb_path_exists_tz jsonb_path_match jsonb_path_match_tz jsonb_path_query jsonb_path_query_array
    jsonb_path_query_array_tz jsonb_path_query_first jsonb_path_query_first_tz jsonb_path_query_tz jsonb_populate_record
    jsonb_populate_record_valid jsonb_populate_recordset jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls
    jsonb_to_record jsonb_to_recordset jsonb_typeof row_to_json to_json to_jsonb

    array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position array_positions
    array_prepend array_remove array_replace array_reverse array_sample array_shuffle array_sort array_to_string
    array_upper cardinality generate_series generate_subscripts trim_array unnest

    datemultirange daterange int4multirange int4range int8multirange int8range isempty lower_inc lower_inf multirange
    nummultirange numrange range_merge tsmultirange tsrange tstzmultirange tstzrange upper_inc upper_inf

    array_to_tsvector json_to_tsvector jsonb_to_tsvector numnode phraseto_tsquery plainto_tsquery querytree setweight
    strip to_tsquery to_tsvector ts_delete ts_filter ts_headline ts_lexize ts_rank ts_rank_cd tsquery_phrase
    tsvector_to_array websearch_to_tsquery

    xml_is_well_formed xml_is_well_formed_content xml_is_well_formed_document xmlagg xmlcomment xpath xpath_exists

    abbrev broadcast family host hostmask inet_merge inet_same_family macaddr8_set7bit masklen netmask network
    set_masklen

    area bound_box box center circle diagonal diameter height isclosed isopen line lseg npoints path pclose point
    polygon popen radius slope width

    enum_first enum_last enum_range gen_random_uuid hashtext hashtextextended num_nonnulls num_nulls pg_column_size
    pg_size_bytes pg_size_pretty pg_typeof uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7

    bool bpchar bytea cidr date float4 float8 inet int2 int4 int8 jsonb macaddr macaddr8 money name text timestamptz
    timetz tsquery tsvector uuid varbit
""")

# Each call returns another value, so an output column computed only from these says when the row was loaded, not what
# it is. current_date is not one of them: a date of validity is data, and rewriting it once a day is right.
STAMPS = _words("""
    array_sample array_shuffle clock_timestamp current_time current_timestamp gen_random_uuid localtime localtimestamp
    now random random_normal statement_timestamp timeofday transaction_timestamp uuidv4 uuidv7
""")

# No reg* types, which look names up in the catalogs, except those of text search; no aclitem, xid, record, and no row
# type of a catalog.
TYPES = _words("""
    bigint bit bool boolean box bpchar bytea char character cidr circle date datemultirange daterange dec decimal float
    float4 float8 inet int int2 int4 int4multirange int4range int8 int8multirange int8range integer interval json jsonb
    jsonpath line lseg macaddr macaddr8 money name nchar numeric nummultirange numrange oid path point polygon real
    regconfig regdictionary smallint text tid time timestamp timestamptz timetz tsmultirange tsquery tsrange
    tstzmultirange tstzrange tsvector
    uuid varbit varchar xml
""")

OPERATORS = _words("""
    !! !~ !~* !~~ !~~* != # ## #- #> #>> % & && &< &<| &> * *< *<= *<> *= *> *>= + - -> ->> -|- / < <-> << <<= <<| <= <>
    <@ <^ = > >= >> >>= >^ ? ?# ?& ?- ?-| ?| ?|| @ @-@ @> @? @@ @@@ ^ ^@ | |&> |/ |>> || ||/ ~ ~* ~<=~ ~<~ ~= ~>=~ ~>~
    ~~ ~~*
""")
PREFIX_OPERATORS = _words("!! # + - ?- ?| @ @-@ @@ |/ ||/ ~")

SAMPLING_METHODS = _words("bernoulli system")

# System columns change while the row does not. ctid is allowed, to break ties between equal rows.
SYSTEM_COLUMNS = _words("cmax cmin tableoid xmax xmin")

# PostgreSQL reads `(x).f`, and `x.f` for the alias of a function in FROM, as the call f(x) if x has no field f:
# `('/etc/passwd'::text).pg_read_file` reads a file. So no name after a dot may be that of a pg_catalog function that
# takes one argument, is not allowed above and does more than compute, nor that of a type whose input looks names up in
# the catalogs. A test compares this list with the live catalogs.
_CATALOG_TYPES = _words("""
    aclitem regclass regcollation regconfig regdictionary regnamespace regoper regoperator regproc regprocedure regrole
    regtype xml
""")
FIELD_NAMES_REFUSED = (
    _CATALOG_TYPES
    | {f"_{name}" for name in _CATALOG_TYPES}  # their array types
    | {name + suffix for name in _CATALOG_TYPES for suffix in ("in", "out", "recv", "send", "_in", "_out", "_send")}
    | _words("""
        aclexplode amvalidate brin_summarize_new_values current_schemas current_setting currval fmgr_c_validator
        fmgr_internal_validator fmgr_sql_validator gin_clean_pending_list hash_aclitem lo_close lo_creat lo_create
        lo_get lo_import lo_tell lo_tell64 lo_unlink mxid_age nextval obj_description oidvectortypes pg_basetype
        pg_blocking_pids pg_char_to_encoding pg_encoding_to_char pg_extension_update_paths pg_function_is_visible
        pg_indexes_size pg_mcv_list_items pg_opclass_is_visible pg_operator_is_visible pg_opfamily_is_visible
        pg_options_to_table pg_partition_ancestors pg_partition_root pg_partition_tree pg_promote
        pg_safe_snapshot_blocking_pids pg_settings_get_flags pg_split_walfile_name pg_statistics_obj_is_visible
        pg_table_is_visible pg_table_size pg_total_relation_size pg_type_is_visible pg_typeof plpgsql_validator
        row_security_active setseed ts_debug ts_stat ts_token_type xml_is_well_formed xmlagg xmlcomment xmltext
    """)
)
FIELD_BEGINNINGS_REFUSED = tuple(
    sorted(
        _words("""
            binary_upgrade_ pg_advisory_ pg_backup_ pg_cancel_ pg_collation_ pg_column_ pg_conversion_ pg_create_
            pg_current_ pg_database_ pg_drop_ pg_get_ pg_import_ pg_is_ pg_log_ pg_ls_ pg_read_ pg_relation_
            pg_replication_ pg_restore_ pg_sequence_ pg_sleep pg_stat_ pg_tablespace_ pg_terminate_ pg_try_ pg_ts_
            pg_xact_ to_reg txid_
        """)
    )
)

RESERVED = _words("""
    all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create
    current_catalog current_date current_role current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign from grant group having in initially intersect into lateral
    leading limit localtime localtimestamp not null offset on only or order placing primary references returning select
    session_user some symmetric system_user table then to trailing true union unique user using variadic when where
    window with
""")
# These may name a function or a type, never a column or a table.
FUNCTION_OR_TYPE_KEYWORDS = _words("""
    authorization binary collation concurrently cross current_schema freeze full ilike inner is isnull join left like
    natural notnull outer overlaps right similar tablesample verbose
""")
# These may name a column or a table, never a function, because PostgreSQL gives each special syntax.
COLUMN_NAME_KEYWORDS = _words("""
    between bigint bit boolean char character coalesce dec decimal exists extract float greatest grouping inout int
    integer interval json json_array json_arrayagg json_exists json_object json_objectagg json_query json_scalar
    json_serialize json_table json_value least merge_action national nchar none normalize nullif numeric out overlay
    position precision real row setof smallint substring time timestamp treat trim values varchar xmlattributes
    xmlconcat xmlelement xmlexists xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable
""")
# These may name an output column only after AS.
LABELS_NEEDING_AS = _words("""
    array as char character create day except fetch filter for from grant group having hour intersect into isnull limit
    minute month notnull offset on order over overlaps precision returning second to union varying where window with
    within without year
""")

SESSION_WORDS = _words("current_catalog current_role current_schema current_user session_user system_user user")
INTERVAL_FIELDS = ("year", "month", "day", "hour", "minute", "second")
