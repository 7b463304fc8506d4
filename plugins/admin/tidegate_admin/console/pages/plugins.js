// What is installed, what of it runs, and its options.

import { list } from '../list.js';

export const plugins = { show: (root, place, signal) => list(root, place, signal, {
  page: 'plugins', title: 'Plugins', request: 'list-plugins', key: (row) => `${row.kind} ${row.name} ${row.distribution}`, columns: [
    { head: 'Plugin', cell: (row) => `${row.kind ? `${row.kind}-` : ''}${row.name}` },
    { head: 'Runs', cell: (row) => [{ text: row.is_active ? 'yes' : 'no', kind: `tag ${row.is_active ? 'good' : ''}` }] },
    { head: 'Package', cell: (row) => `${row.distribution} ${row.version}` },
    { head: 'What it is', cell: (row) => row.summary },
    { head: 'Set by', cell: (row) => row.parts.map(({ table, options }) => {
      const set = Object.entries(options).map(([name, value]) => `${name} = ${value}`).join(', ');
      return set ? `${table}: ${set}` : table;
    }).join(' | ') },
  ],
  sorts: [['', 'Kind and name']],
  choices: [{ name: 'active', label: 'Which', options: [['', 'All'], ['true', 'That run']] }],
  hint: 'Any part of kind, name or package.', nothing: 'No plugin is installed.',
}) };
