# Third-party packages: the system's when present, else fetched by a pinned hash.
include_guard()
include(FetchContent)

find_package(nlohmann_json 3.9 QUIET)
if(NOT nlohmann_json_FOUND)
  message(STATUS "nlohmann_json not found (Debian: nlohmann-json3-dev); fetching it")
  set(archive "${CMAKE_BINARY_DIR}/nlohmann-json-3.11.3.tar.xz")
  # Downloaded by itself, so that a machine without a network is told which package to install.
  file(
    DOWNLOAD https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
    "${archive}"
    STATUS status
    TIMEOUT 60
  )
  list(GET status 0 status_code)
  if(NOT status_code EQUAL 0)
    message(
      FATAL_ERROR
      "Quire needs the nlohmann JSON headers, and they could not be fetched: "
      "install nlohmann-json3-dev"
    )
  endif()
  FetchContent_Declare(
    nlohmann_json
    URL "${archive}"
    URL_HASH SHA256=d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d
  )
  set(JSON_Install OFF)
  set(JSON_BuildTests OFF)
  FetchContent_MakeAvailable(nlohmann_json)
endif()
