// Whether workers that move on their own are all stuck, found out while they move.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace grainline {

// place_of(i): the place where worker i waits, or 0 while it runs; once it has run something it
// never comes back to that place. is_stuck(i, place): whether nothing has happened that lets worker
// i leave that place. places: room for one place per worker.
//
// True only if there was a moment at which all of them were stuck; and then nothing but somebody
// else can set them in motion. Whoever waits at the same place in the first and in the third pass
// ran nothing between the two. So from the end of the first to the beginning of the third nobody
// did, and what the second pass finds of one worker after the other holds for all at once.
template <typename PlaceOf, typename IsStuck>
bool were_all_stuck(std::span<uint32_t> places, PlaceOf place_of, IsStuck is_stuck) {
  for (size_t i = 0; i < places.size(); ++i) places[i] = place_of(i);
  for (size_t i = 0; i < places.size(); ++i)
    if (!is_stuck(i, places[i])) return false;
  for (size_t i = 0; i < places.size(); ++i)
    if (place_of(i) != places[i]) return false;
  return true;
}

}  // namespace grainline
