/* Walks the tables of regular expressions: `classes`, `rows` and `automata` are generated above. */
#ifndef UNDERDECK_MESH_AUTOMATON_H
#define UNDERDECK_MESH_AUTOMATON_H

#include "head.bpf.h"

#define CELL(table, index)                              \
	({                                              \
		ud_u32 cell = (index);                  \
		hide(cell);                             \
		(table)[cell & (sizeof(table) / sizeof(*(table)) - 1)]; \
	})

/* Whether all of the text matches. */
apart int matches(struct ud_head *h never_null, ud_u32 at, ud_u32 len, ud_u32 index)
{
	ud_u32 i = zero(), state = 0, first_class, first_row, end_column, dead;
	const struct ud_automaton *automaton;

	hide(index);
	automaton = &automata[index & (sizeof(automata) / sizeof(*automata) - 1)];
	first_class = automaton->first_class;
	first_row = automaton->first_row;
	end_column = automaton->end_column;
	dead = automaton->dead;
	while (i < len && state != dead && can_loop) {
		ud_u32 class = CELL(classes, first_class + AT(h, at + i));

		state = CELL(rows, first_row + state + class);
		step(i, 1);
	}
	return i == len && CELL(rows, first_row + state + end_column);
}

#endif
