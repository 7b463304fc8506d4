// The way in: the token of this machine's file, a user's token, or a user's name and password.

import { look, readiness } from '../api.js';
import { el, setText } from '../dom.js';
import { forget, usePassword, useToken } from '../session.js';

export function show(root, why, done) {
  const problem = el('p', { class: 'problem', role: 'alert' }, why);
  const token = el('input', { id: 'token', type: 'password', autocomplete: 'off', spellcheck: 'false' });
  const name = el('input', { id: 'username', type: 'text', autocomplete: 'username', spellcheck: 'false' });
  const password = el('input', { id: 'password', type: 'password', autocomplete: 'current-password' });
  const submit = el('button', { type: 'submit', class: 'primary' }, 'Log in');
  const users = el('details', {}, el('summary', {}, 'User name and password instead'),
    field('User name', name), field('Password', password));

  async function logIn(event) {
    event.preventDefault();
    if (users.open && name.value) usePassword(name.value, password.value);
    else if (token.value.trim()) useToken(token.value.trim());
    else {
      setText(problem, 'Enter the token, or open "User name and password" and enter those.');
      return;
    }
    submit.disabled = true;
    setText(problem, '');
    try {
      await look('show-overview');
      done();
    } catch (error) {
      submit.disabled = false;
      if (error.status === 503) {
        // Users cannot be checked while it recovers; the frame shows how far that is.
        done();
        return;
      }
      forget();
      const hint = users.open && name.value ? 'Are both the user name and the password right?' : 'Is it the token of this gateway, and all of it?';
      setText(problem, error.status === 401 ? `That is not accepted. ${hint}` : error.message);
    }
  }

  root.replaceChildren(el('main', { class: 'login' }, el('form', { class: 'card', onsubmit: logIn },
    el('h1', {}, el('img', { src: 'icon.svg', alt: '', width: '40', height: '40' }), 'Tidegate'),
    field('Token', token, 'The contents of the file admin.token in the gateway\'s data directory: '
      + 'cat tidegate-data/admin.token after "make run".'),
    users, problem, el('div', { class: 'actions' }, status(), submit))));
  token.focus();
}

function field(label, input, hint) {
  if (hint) input.setAttribute('aria-describedby', `${input.id}-hint`);
  return el('div', { class: 'field' }, el('label', { for: input.id }, label), input,
    hint && el('small', { id: `${input.id}-hint` }, hint));
}

function status() {
  const text = el('span', { class: 'quiet' });
  readiness().then((found) => setText(text, `Gateway: ${found.status}`), () => {});
  return text;
}
