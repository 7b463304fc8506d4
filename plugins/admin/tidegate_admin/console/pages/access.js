// Who may do what, by which rule, and who is known.

import { look } from '../api.js';
import { el } from '../dom.js';
import * as format from '../format.js';
import { list } from '../list.js';
import { Table } from '../table.js';

const KINDS = { allow: 'good', filter: 'warn', deny: 'bad' };

export const access = { show(root, place, signal) {
  const user = field('user', 'User', place.query.get('user') ?? '', 'anonymous');
  const destination = field('destination', 'Destination', place.query.get('destination') ?? '', 'queue://orders');
  const problem = el('p', { class: 'problem', role: 'alert' });
  const summary = el('p', { class: 'quiet', role: 'status' });
  const table = new Table({ caption: 'What they may do', key: (row) => row.action, columns: DECIDED, empty: 'Enter a user, and a destination or none.' });
  table.update([]);
  root.append(el('h1', {}, 'Access'), el('form', { class: 'tools', onsubmit: (event) => {
    event.preventDefault();
    const wanted = new URLSearchParams({ user: user.value.trim(), destination: destination.value.trim() });
    location.hash = `#/access?${wanted}`;
  } }, el('label', { for: 'user' }, 'User'), user, el('label', { for: 'destination' }, 'Destination'), destination, el('button', { type: 'submit', class: 'primary' }, 'Explain')),
  problem, summary, table.element, el('p', {}, el('a', { href: '#/users' }, 'All users')));
  if (!user.value) return;
  look('explain-access', { user: user.value, destination: destination.value }, signal).then((found) => {
    table.update(found.decided);
    summary.textContent = `${found.user}${found.groups.length ? `, in ${found.groups.join(', ')}` : ', in no group'}`;
  }).catch((error) => {
    if (!signal.aborted) problem.textContent = error.message;
  });
} };

function field(id, label, value, placeholder) {
  const made = el('input', { id, type: 'text', 'aria-label': label, placeholder, spellcheck: 'false', autocomplete: 'off' });
  made.value = value;
  return made;
}

const DECIDED = [
  { head: 'To', cell: (row) => row.action },
  { head: 'Is', cell: (row) => [{ text: { allow: 'allowed', filter: 'allowed in part', deny: 'refused' }[row.verdict] ?? row.verdict, kind: `tag ${KINDS[row.verdict] ?? ''}` }] },
  { head: 'Because', cell: (row) => (row.reasons.length
    ? row.reasons.map(({ authorizer, why }) => `${authorizer}: ${why.join('; ') || 'gives no reason'}`).join(' | ')
    : 'nobody is asked, and all is allowed') },
];

export const users = { show: (root, place, signal) => list(root, place, signal, {
  page: 'users', title: 'Users', request: 'list-users', key: (row) => `${row.authenticator} ${row.user}`, columns: [
    { head: 'User', cell: (row) => [{ text: row.user, href: `#/access?${new URLSearchParams({ user: row.user })}`, kind: 'name' }] },
    { head: 'Groups', cell: (row) => row.groups.join(', ') },
    { head: 'Known to', cell: (row) => row.authenticator },
    { head: 'Let in by', cell: (row) => row.checks.join(', ') },
    { head: 'Connections', isNumber: true, cell: (row) => format.count(row.connections) },
  ],
  sorts: [['', 'Name']], hint: 'Any part of the name.', nothing: 'No authenticator lists users.',
}) };
