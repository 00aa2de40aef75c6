package doctor_test

import (
	"strings"
	"testing"

	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

// TestGrants: rights that no grant function grants are found, and the remedy revokes them. The roles
// that writers, owners and monitoring have are not.
func TestGrants(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	here := strings.TrimSuffix(p.table(""), `.""`)
	literal := "'" + strings.ReplaceAll(p.conn.User, "'", "''") + "'"
	p.exec("SELECT " + here + ".grant_writer(" + literal + "), " + here + ".grant_owner(" + literal + ")")
	p.exec("GRANT SELECT ON " + p.table("locks_held") + ", " + p.table("distributed_locks") + " TO PUBLIC")
	p.expect("grants", doctor.OK, "no role has more")
	for grant, says := range map[string]string{
		"SELECT ON " + p.table("fencing_secret") + " TO " + p.role():           "SELECT",
		"SELECT (secret) ON " + p.table("fencing_secret") + " TO PUBLIC":       "PUBLIC has SELECT",
		"SELECT ON " + p.table("fencing_epoch") + " TO " + p.role():            "SELECT",
		"INSERT, UPDATE ON " + p.table("fencing_high_water") + " TO PUBLIC":    "PUBLIC has INSERT, UPDATE",
		"TRIGGER, TRUNCATE ON " + p.table("once_keys") + " TO " + p.role():     "TRIGGER, TRUNCATE",
		"DELETE ON " + p.table("distributed_locks") + " TO PUBLIC":             "PUBLIC has DELETE",
		"INSERT ON " + p.table("pglock_migrations") + " TO " + p.role():        "INSERT",
		"UPDATE ON SEQUENCE " + p.table("fencing_tokens") + " TO " + p.role():  "UPDATE",
		"EXECUTE ON FUNCTION " + p.table("bound_grants") + "() TO " + p.role(): "EXECUTE",
		"EXECUTE ON FUNCTION " + p.table("bind") + "(text, bigint) TO PUBLIC":  "PUBLIC has EXECUTE",
		"CREATE ON SCHEMA " + here + " TO PUBLIC":                              "PUBLIC has CREATE",
	} {
		p.exec("GRANT " + grant)
		r := p.expect("grants", doctor.Fail, says)
		_, remedy, _ := strings.Cut(r.Remedy, "run ")
		p.exec(remedy)
		p.expect("grants", doctor.OK, "no role has more")
	}
}
