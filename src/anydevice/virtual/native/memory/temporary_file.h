// Where there is no memfd: a file that has a name as long as its maker wants others to find it.
#pragma once

#include <string>

namespace anydevice::temporary_file {

// Its descriptor, -1 with errno if it cannot be made; and its name.
int make(std::string& name);

// The descriptor of one that another process of this user made, or -1.
int open(const std::string& name);

// Nobody finds it any more; those who have opened it keep it.
void remove(const std::string& name);

}  // namespace anydevice::temporary_file
