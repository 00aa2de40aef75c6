package testserver

// What a person can set. None of it is needed.
const (
	// URLVariable names a server that runs already and is used as it is. The tests need a superuser there, and they
	// create and drop schemas and databases of their own.
	URLVariable = "PGLOCK_TEST_DATABASE_URL"
	// ServerVariable forces one way to a server: url, docker, local or embedded.
	ServerVariable = "PGLOCK_TEST_SERVER"
	// ImageVariable names the image that the docker way runs. Without it, that is DefaultImage. With it, the docker
	// way is the only one, unless ServerVariable forces another.
	ImageVariable = "PGLOCK_TEST_IMAGE"
	// BinDirVariable is the directory of the PostgreSQL programs that the local way and private servers run.
	BinDirVariable = "PGLOCK_TEST_BINDIR"
	// RepositoryVariable is the Maven repository that the embedded way downloads from. Without it, that is Maven
	// Central.
	RepositoryVariable = "PGLOCK_TEST_EMBEDDED_REPOSITORY"
	// PatienceVariable is how long a registry or a repository may keep silent before it counts as unreachable, 10s
	// without it.
	PatienceVariable = "PGLOCK_TEST_PATIENCE"
)

// DefaultImage is what the docker way runs.
const DefaultImage = "postgres:17-alpine"

const defaultRepository = "https://repo1.maven.org/maven2"
