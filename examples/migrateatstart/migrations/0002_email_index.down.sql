DROP INDEX accounts_email;
