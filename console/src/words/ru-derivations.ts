/** How changes of source tables lead to keys, by the codes of `src/vitrina/sentences/derivations.py`. */
const sentences: Record<string, string> = {
  "derive.affects_columns": "options.live.affects для {table} должен давать {columns} в этом порядке, а столбцов {count}",
  "derive.affects_failed": "options.live.affects для {table} не выполняется: {message}",
  "derive.affects_parameter":
    "в options.live.affects для {table} параметрами служат столбцы этой таблицы, например :id; найдено {parameter}",
  "derive.affects_unknown": "options.live.affects называет {table}, а запрос её не читает",
  "derive.as_stated": "как указано в options.live.affects",
  "derive.by_way_of": "{columns}, через {tables}",
  "derive.every_key": "все ключи",
  "derive.every_key_of": "изменение {table} может касаться всех ключей",
  "derive.float_sum":
    "{function}() по числам с плавающей точкой: для отдельных ключей последние цифры могут отличаться от полной загрузки",
  "derive.no_old_values":
    "в журнале нет прежних значений {columns} таблицы {table}, а по ним находятся ключи; выполните в источнике: {statements}",
  "derive.no_parser": "чтобы следить за запросом, нужен разборщик PostgreSQL: установите vitrina[live]",
  "derive.no_table": "таблицы {name} нет",
  "derive.no_tables": "запрос не читает таблиц: следить не за чем",
  "derive.not_keywise":
    "запрос нельзя дёшево выполнять для отдельных ключей: {why}; добавьте индекс или загружайте по расписанию",
  "derive.not_parsed": "разборщик PostgreSQL не читает запрос: {message}",
  "derive.not_readable":
    "чтобы следить за запросом, нужно право SELECT на {table}, которую представление читает с правами владельца: дайте его читателю",
  "derive.nothing_derived":
    "изменения {tables} не ведут к ключам запроса: укажите связь в options.live.affects или загружайте по расписанию",
  "derive.refused": "за запросом нельзя следить, в нём {what}: загружайте его по расписанию",
  "derive.refused_relation": "{name}: {kind}; таких изменений нет в журнале, следить за ними нельзя",
  "derive.too_many_tables": "запрос читает больше {most} таблиц, считая каждое представление и WITH каждый раз",
  "derive.truncated": "таблица {table} очищена",
  "derive.unordered": "{function}() без ORDER BY: для отдельных ключей порядок может отличаться от полной загрузки",
  "derive.value_missing": "в журнале нет значения таблицы {table}, по которому находятся ключи",
};

export default sentences;
