// Who is logged in, in this tab alone.
//
// A token is kept in sessionStorage: it goes nowhere by itself, as a cookie would (cookies of 127.0.0.1 go to
// whatever listens on any port of this machine), so that no page of another site can use it. A password is kept
// in memory only, until the page is reloaded.

const KEY = 'tidegate.authorization';

let authorization = sessionStorage.getItem(KEY);

/** The value of the Authorization header; null: nobody is logged in. */
export function credentials() {
  return authorization;
}

/** Use a token: the token file's or a user's. */
export function useToken(token) {
  authorization = `Bearer ${token}`;
  sessionStorage.setItem(KEY, authorization);
}

/** Use a user's name and password. */
export function usePassword(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  authorization = `Basic ${btoa(String.fromCharCode(...bytes))}`;
  sessionStorage.removeItem(KEY);
}

/** Forget them. */
export function forget() {
  authorization = null;
  sessionStorage.removeItem(KEY);
}
