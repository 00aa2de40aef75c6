package pglock_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock"
)

// TestLeaseHasAllMethods: go doc shows the methods of pglock.Lease because the package declares
// them. They must be those of leasetable.Lease, with the same signatures.
func TestLeaseHasAllMethods(t *testing.T) {
	t.Parallel()
	want, got := methods(reflect.TypeFor[*leasetable.Lease]()), methods(reflect.TypeFor[*pglock.Lease]())
	if !reflect.DeepEqual(want, got) {
		t.Errorf("leasetable.Lease has %v,\npglock.Lease has %v", want, got)
	}
}

// methods returns the signatures of the exported methods by their names.
func methods(typ reflect.Type) map[string]string {
	all := map[string]string{}
	for i := range typ.NumMethod() {
		m := typ.Method(i)
		signature := ""
		for j := 1; j < m.Type.NumIn(); j++ {
			signature += " " + m.Type.In(j).String()
		}
		for j := range m.Type.NumOut() {
			signature += ", returns " + strings.Replace(m.Type.Out(j).String(), "*leasetable.Lease", "*pglock.Lease", 1)
		}
		all[m.Name] = signature
	}
	return all
}
