package pgtest

import (
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// oddSettings change how text is read and printed, how functions are compiled, and how transactions
// run. The database of OddDatabase has them for every role, also for the one that migrates.
var oddSettings = map[string]string{
	"TimeZone":                      "'America/St_Johns'",
	"DateStyle":                     "German",
	"IntervalStyle":                 "'iso_8601'",
	"bytea_output":                  "'escape'",
	"extra_float_digits":            "0",
	"default_text_search_config":    "'pg_catalog.turkish'",
	"standard_conforming_strings":   "off",
	"array_nulls":                   "off",
	"transform_null_equals":         "on",
	"quote_all_identifiers":         "on",
	"default_transaction_isolation": "'serializable'",
	"synchronous_commit":            "off",
	"plan_cache_mode":               "'force_generic_plan'",
	"plpgsql.extra_errors":          "'all'",
	"plpgsql.print_strict_params":   "on",
	"xmloption":                     "'document'",
	"row_security":                  "off",
}

// OddDatabase creates a database with the rules of Turkish for letters, where the server knows them,
// and with settings that few others have. The server's messages are not in English if it has a
// locale for that. It returns the database's URL. Cleanup drops it.
func OddDatabase(tb testing.TB) string {
	tb.Helper()
	u, err := url.Parse(URL(tb))
	if err != nil {
		tb.Fatal("pgtest: OddDatabase needs the server's address as a URL, not as keywords and values")
	}
	server, admin := config(tb, u.String()), Pool(tb)
	var icu bool // a database's collation can be one of ICU
	if err := admin.QueryRow(tb.Context(), "SELECT current_setting('server_version_num')::int >= 150000").Scan(&icu); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	locale := "LC_COLLATE 'C' LC_CTYPE 'C'"
	if icu {
		locale += " LOCALE_PROVIDER icu ICU_LOCALE 'tr-TR'"
	}
	name := "odd_" + strings.ToLower(rand.Text()[:16])
	statements := []string{fmt.Sprintf("CREATE DATABASE %s ENCODING 'UTF8' %s TEMPLATE template0", name, locale)}
	for setting, to := range oddSettings {
		statements = append(statements, fmt.Sprintf("ALTER DATABASE %s SET %s = %s", name, setting, to))
	}
	if err := execute(server, statements...); err != nil {
		tb.Fatalf("pgtest: %v", err)
	}
	tb.Cleanup(func() {
		if err := execute(server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			tb.Errorf("pgtest: drop database %s: %v", name, err)
		}
	})
	messages := "English"
	for _, language := range []string{"tr_TR.UTF-8", "de_DE.UTF-8", "fr_FR.UTF-8"} {
		if execute(server, fmt.Sprintf("ALTER DATABASE %s SET lc_messages = '%s'", name, language)) == nil {
			messages = language
			break
		}
	}
	tb.Logf("pgtest: database %s: the server's messages are in %s", name, messages)
	u.Path = "/" + name
	return u.String()
}
