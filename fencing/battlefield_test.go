package fencing_test

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// huge is a token that would lock out every later holder.
const huge = 9_000_000_000_000_000_000

// An attack is a transaction of a role with few rights, and its outcome.
type attack struct {
	name string
	want string   // the SQLSTATEs that it may end with; "ok" if it may commit
	sql  []string // with the placeholders of battlefield
	as   string   // the roles that try it, separated by "|"; if empty, those of the scene
}

func a(name, want string, sql ...string) attack { return attack{name: name, want: want, sql: sql} }

func (a attack) by(roles string) attack { a.as = roles; return a }

// A scene prepares attacks that have something in common.
type scene struct {
	name      string
	on        string   // the kinds of battlefield; "any lock|named" if empty
	as        string   // the roles that attack; "writer|holder" if empty
	both      bool     // {forge} stands for a token that is too large, too
	prepare   []string // the writer creates these objects first
	owned     []string // the owner creates these
	admin     []string // the superuser changes these
	again     string   // the superuser runs this before each attack
	attacks   []attack
	undo      []string
	noControl bool // the writer's own row can't be written
}

// battlefield is a protected table whose rows belong to the locks n1, n2 and n3, and roles that
// attack it. The holder and the user's holder have the grant of n1, which is older than those of
// the others.
//
// In statements {t} is the table, {mid} its partition and {leaf} that one's, {m} a schema in which every role may create, {h} the schema of
// the locks, {role} the writer, {owner} the owner. {bind} binds n1; {forge} sets what a holder of
// all locks has, with the token of n2 and without the seal, and {huge} sets the same with a token
// that is too large; {clear} unsets it.
type battlefield struct {
	fixture
	kind, table, mine string
	named             *strings.Replacer
	roles             map[string]*pgxpool.Pool
	own, other        fencing.Fence // of n1, and of n2 and n3
}

func newBattlefield(t *testing.T, pool *pgxpool.Pool, kind string) battlefield {
	t.Helper()
	g := fixture{t: t, pool: pool, schema: pgtest.SchemaName(t)} // pgtest.Schema revokes what a migration leaves to PUBLIC
	ok(t, migrate(t, pool, g.schema))
	g.writer = pgtest.WriterPool(t, pool, g.schema)
	b := battlefield{fixture: g, kind: kind, table: g.elsewhereUnprotected("t"), mine: schema.Quote(pgtest.SchemaName(t))}
	b.roles = map[string]*pgxpool.Pool{
		"outsider": g.role(), "looker": g.role(), "owner": g.role(),
		"writer": g.writer, "holder": g.writer, "user": pgtest.UserPool(t, g.pool, g.schema),
	}
	b.roles["user's holder"] = b.roles["user"]
	in := strings.TrimSuffix(b.table, `"t"`)    // its schema
	if strings.HasSuffix(kind, "partitioned") { // the columns of each partition stand in another order
		g.sql(strings.NewReplacer("{t}", b.table, "{in}", in).Replace("DROP TABLE {t}; CREATE TABLE {t}" + columns + " PARTITION BY RANGE (id); CREATE TABLE {in}rest PARTITION OF {t} DEFAULT; " +
			"CREATE TABLE {in}mid (junk text, v int, id int NOT NULL) PARTITION BY RANGE (id); ALTER TABLE {in}mid DROP junk; ALTER TABLE {t} ATTACH PARTITION {in}mid FOR VALUES FROM (0) TO (10); " +
			"CREATE TABLE {in}leaf (more text, id int NOT NULL, fence_token bigint, v int); ALTER TABLE {in}leaf DROP more, DROP fence_token; ALTER TABLE {in}mid ATTACH PARTITION {in}leaf FOR VALUES FROM (0) TO (10); " +
			"GRANT SELECT, INSERT, UPDATE, DELETE ON {in}mid, {in}leaf TO PUBLIC"))
	}
	role := func(name string) string { return pgtest.RoleOf(b.roles[name]) }
	g.sql("ALTER TABLE " + b.table + " ADD parent int; GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON " + b.table + " TO PUBLIC")
	g.sql("CREATE SCHEMA " + b.mine + "; GRANT ALL ON SCHEMA " + b.mine + " TO PUBLIC; GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + schema.Quote(role("looker")))
	g.sql("SELECT pglock.grant_owner(" + literal(role("owner")) + ")")
	g.protect(b.table, map[string][]fencing.Option{"named": {fencing.NamedBy("n{id}")}, "permissive": {fencing.Permissive()}}[strings.TrimSuffix(kind, ", partitioned")]...)
	old := g.grant("n5", time.Hour)
	b.own, b.other = g.grant("n1", time.Hour), g.grant("n2", time.Hour)
	current, released, expired := g.grant("n5", time.Hour), g.grant("n6", time.Hour), g.grant("n7", -time.Second)
	g.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity', ended_at = clock_timestamp() WHERE name = 'n6'")

	names := settings(g)
	b.named = strings.NewReplacer("{t}", b.table, "{mid}", in+"mid", "{leaf}", in+"leaf", "{m}", b.mine, "{h}", schema.Quote(g.schema), "{role}", schema.Quote(role("writer")), "{owner}", schema.Quote(role("owner")),
		"{bind}", g.bindSQL(b.own), "{perform bind of n2}", strings.Replace(g.bindSQL(b.other), "SELECT", "PERFORM", 1), "{clear}", g.clear(),
		"{forge}", g.forge("n2", b.other.Token), "{huge}", g.forge("n2", huge), "{forge 1}", g.forge("n2", 1),
		"{forge current}", g.forge("n5", current.Token), "{forge old}", g.forge("n5", old.Token), "{forge released}", g.forge("n6", released.Token),
		"{forge expired}", g.forge("n7", expired.Token), "{forge never}", g.forge("n8", 1), "{forge made up}", g.forge("n2", huge),
		"{grants}", names["grants"], "{token}", names["token"], "{stamp}", names["stamp"], "{own token}", sprintf("%d", b.own.Token), "{other token}", sprintf("%d", b.other.Token),
		// The token alone is changed, and put back before the rows are judged: the seal is whole
		// again.
		"{one token}", sprintf("concat(set_config('%s', '%d', true), set_config('%s', '%[2]d', true))", names["token"], huge, names["stamp"]),
		"{back}", sprintf("set_config('%s', '%d', true)", names["token"], b.own.Token))
	return b
}

// do carries the statements out in one transaction of the role, which binds n1 first if it is a
// holder.
func (b battlefield) do(role string, statements ...string) error {
	b.t.Helper()
	var all []string
	if strings.HasSuffix(role, "holder") {
		all = append(all, b.bindSQL(b.own))
	}
	for _, s := range statements {
		all = append(all, b.named.Replace(s))
	}
	if strings.HasPrefix(all[0], "CALL ") { // a procedure that commits needs to be alone
		_, err := b.roles[role].Exec(b.t.Context(), all[0])
		return err
	}
	return b.run(b.roles[role], all...)
}

// rows gives the table its three rows again.
func (b battlefield) rows(again string) {
	b.t.Helper()
	b.replica(b.named.Replace(sprintf("DELETE FROM {t}; INSERT INTO {t} (id, v, fence_token) VALUES (1, 0, %d), (2, 0, %d), (3, 0, %[2]d); %s", b.own.Token, b.other.Token, again)))
}

// state returns what no attack may change: the rows of the other grant, of which a role that needs
// no grant may change all but the token, and the rows with a token that was made up.
func (b battlefield) state(free bool) string {
	b.t.Helper()
	theirs := map[bool]string{true: "format('%s has %s', id, fence_token)", false: "t::text"}[free]
	return value[string](b.fixture, b.named.Replace(sprintf("SELECT coalesce(string_agg(CASE WHEN id IN (2, 3) THEN %s WHEN coalesce(fence_token, 0) NOT IN (0, %d, %d) OR id > 3 AND fence_token = %[3]d "+
		"THEN 'made up: ' || t::text END, ' ' ORDER BY id), '') FROM {t} AS t", theirs, b.own.Token, b.other.Token)))
}

// play plays a scene. At its end the writer, with its grant, can write its own row as before.
func (b battlefield) play(s scene) {
	b.t.Helper()
	if !slices.Contains(strings.Split(cmp.Or(s.on, "any lock|named"), "|"), b.kind) {
		return
	}
	for who, statements := range map[string][]string{"writer": s.prepare, "owner": s.owned} {
		if len(statements) > 0 {
			want(b.t, s.name+": objects of the "+who, b.do(who, statements...), nil)
		}
	}
	for _, statement := range append(s.admin, "GRANT ALL ON ALL TABLES IN SCHEMA {m} TO PUBLIC") {
		b.sql(b.named.Replace(statement))
	}
	n := 0
	for _, attack := range s.attacks {
		for _, who := range strings.Split(cmp.Or(attack.as, s.as, "writer|holder"), "|") {
			for _, forge := range []string{"{forge}", "{huge}"}[:1+map[bool]int{true: 1}[s.both]] {
				n++
				var statements []string
				for _, statement := range attack.sql {
					statements = append(statements, strings.NewReplacer("{forge}", forge, "{n}", strconv.Itoa(n)).Replace(statement))
				}
				free := strings.HasPrefix(b.kind, "permissive") && !strings.HasSuffix(who, "holder")
				b.rows(s.again)
				before := b.state(free)
				got := cmp.Or(pgtx.SQLState(b.do(who, statements...)), "ok")
				if !slices.Contains(strings.Fields(attack.want), got) {
					b.t.Errorf("%s: %s, by the %s with %s: %s, want %s", s.name, attack.name, who, forge, got, attack.want)
				}
				if after := b.state(free); after != before {
					b.t.Errorf("%s: %s, by the %s with %s: the rows were %s, and are %s", s.name, attack.name, who, forge, before, after)
				}
			}
		}
	}
	if !s.noControl {
		b.rows(s.again)
		want(b.t, s.name+": control: its own row", b.do("holder", "UPDATE {t} SET v = 7 WHERE id = 1"), nil)
		if v := value[int](b.fixture, "SELECT v FROM "+b.table+" WHERE id = 1"); v != 7 {
			b.t.Errorf("%s: control: the row has %d", s.name, v)
		}
	}
	for _, statement := range s.undo {
		b.sql(b.named.Replace(statement))
	}
}

// settings returns the names of the settings that a transaction's grants are kept in.
func settings(g fixture) map[string]string {
	g.t.Helper()
	var source string // without replacing "pglock." in what is looked for
	ok(g.t, g.pool.QueryRow(g.t.Context(), "SELECT string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = $1::text::regnamespace", schema.Quote(g.schema)).Scan(&source))
	_, suffix, found := strings.Cut(source, "'pglock.grants_")
	if !found {
		g.t.Fatal("no setting holds the grants")
	}
	suffix, _, _ = strings.Cut(suffix, "'")
	names := map[string]string{}
	for _, key := range []string{"grants", "token", "stamp"} {
		names[key] = "pglock." + key + "_" + suffix
	}
	return names
}

// forge returns an expression that is never empty and sets what a holder's transaction has, as well
// as an attacker can tell: a lock's name, the token of that lock and of n1 to n4, and a seal that
// it must guess.
func (g fixture) forge(name string, token fencing.Token) string {
	g.t.Helper()
	names := settings(g)
	grants := sprintf(`%s{"lock": "%s", "grants": {"n1": %[3]d, "n2": %[3]d, "n3": %[3]d, "n4": %[3]d, "%[2]s": %[3]d}}`, strings.Repeat("0", 64), name, token)
	return sprintf("concat(set_config('%s', '%s', true), set_config('%s', '%d', true), set_config('%s', '%d', true))",
		names["grants"], grants, names["token"], token, names["stamp"], token)
}

// clear returns an expression that takes all settings away.
func (g fixture) clear() string {
	g.t.Helper()
	var all []string
	for _, name := range settings(g) {
		all = append(all, sprintf("set_config('%s', '', true)", name))
	}
	return "concat(" + strings.Join(all, ", ") + ", 'x')"
}

// run carries statements out in one transaction and commits unless one fails. Unlike commit it
// sends them as they are.
func (g fixture) run(pool *pgxpool.Pool, statements ...string) error {
	g.t.Helper()
	return g.send(g.beginOn(pool, pgx.TxOptions{}), statements...)
}

// send carries statements out as they are, COPY with one row, and commits unless one fails.
func (g fixture) send(tx pgx.Tx, statements ...string) error {
	g.t.Helper()
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, s := range statements {
		var err error
		if strings.HasPrefix(s, "COPY ") {
			_, err = tx.Conn().PgConn().CopyFrom(g.t.Context(), strings.NewReader("4\t0\n"), s)
		} else {
			_, err = tx.Exec(g.t.Context(), s)
		}
		if err != nil {
			return fencing.Explain(err)
		}
	}
	return fencing.Explain(tx.Commit(g.t.Context()))
}

// bindSQL is the statement that binds a fence, from any language.
func (g fixture) bindSQL(f fencing.Fence) string {
	return sprintf("SELECT %s.bind(%s, %d)", schema.Quote(g.schema), literal(f.Name), f.Token)
}

// refused fails the test unless err is a refusal: stale, unfenced, another lock's, or no right.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	wantCode(t, what, err, "PGL01", "PGL02", "PGL03", "42501", "40001")
}

// wantCode fails the test unless err has one of the SQLSTATEs.
func wantCode(t *testing.T, what string, err error, codes ...string) {
	t.Helper()
	if !slices.Contains(codes, pgtx.SQLState(err)) {
		t.Errorf("%s: %v, want an SQLSTATE of %v", what, err, codes)
	}
}
